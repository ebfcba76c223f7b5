#!/bin/sh
# Installs PyTorch (for CPUs), Ray and TensorFlow into environments of their own below ~/.cache/hekla, for the examples that
# run them. Without them these examples are skipped, each with its reason. About 2 GB and two minutes; what is there is left
# as it is. PyTorch is not installed twice: where `make engines` has made vLLM's environment, that one serves.
set -eu
home="${HEKLA_FRAMEWORKS:-$HOME/.cache/hekla/frameworks}"
engines="${HEKLA_ENGINES:-$HOME/.cache/hekla/engines/vllm-0.32.0-cpu}"

install() { # NAME PIP-ARGUMENTS...: an environment that was not finished is made anew
    name=$1
    shift
    "${PYTHON:-python3}" -m venv --clear "$home/$name"
    "$home/$name/bin/python" -m pip install -q --disable-pip-version-check "$@"
}
is_whole() { [ -e "$home/$1/.whole" ]; }
whole() { touch "$home/$1/.whole"; }

install_torch() {
    if [ -x "$engines/bin/vllm" ] && "$engines/bin/python" -c 'import torch'; then
        rm -rf "$home/torch"
        ln -s "$engines" "$home/torch"
        return
    fi
    [ ! -L "$home/torch" ] || rm "$home/torch" # to an environment that is gone
    is_whole torch && return
    # the plain index has the build for GPUs, many times as large; some machines have the other one at hand
    install torch 'torch==2.13.0+cpu' numpy 2>/dev/null \
        || install torch 'torch==2.13.0' numpy --extra-index-url https://download.pytorch.org/whl/cpu
    whole torch
}

mkdir -p "$home"
install_torch
is_whole ray || { install ray 'ray[default]==2.60.0' && whole ray; }
is_whole tensorflow || { install tensorflow 'tensorflow-cpu==2.21.0' && whole tensorflow; }
