#!/bin/sh
# Installs PyTorch (for CPUs) and Ray into environments of their own below ~/.cache/hekla, for the examples that run them.
# Without them these examples are skipped, each with its reason. About 1.5 GB and two minutes; what is there is left as it is.
set -eu
home="${HEKLA_FRAMEWORKS:-$HOME/.cache/hekla/frameworks}"
install() {
    name=$1
    shift
    if [ -x "$home/$name/bin/python" ] && "$home/$name/bin/python" -c "import $name" 2>/dev/null; then
        return
    fi
    "${PYTHON:-python3}" -m venv "$home/$name"
    "$home/$name/bin/pip" install -q "$@"
}
install torch torch==2.13.0 numpy --extra-index-url https://download.pytorch.org/whl/cpu
install ray 'ray[default]==2.60.0'
