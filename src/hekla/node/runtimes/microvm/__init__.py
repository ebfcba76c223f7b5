"""The runtime `microvm`: each sandbox is a virtual machine with a kernel of its own, copied from one that waits, memory and all.

image.py     the guest's kernel and files         probe.py    whether the processor helps
monitor.py   what a hypervisor must do for us     qemu.py, qmp.py, firecracker.py, cloud_hypervisor.py   those that do
keeper.py    machines, copied and ended           runtime.py  the runtime, and what the host refuses
"""
