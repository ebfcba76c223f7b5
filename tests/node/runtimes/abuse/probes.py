"""What hostile code tries inside a sandbox: each probe prints one line, `name: outcome`. Run by test_abuse.py with the sandbox's own Python."""

SYSTEM_CALLS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": dict(unshare=272, mount=165, umount2=166, pivot_root=155, setns=308, bpf=321, perf_event_open=298, io_uring_setup=425,
        keyctl=250, add_key=248, request_key=249, userfaultfd=323, kexec_load=246, ptrace=101, process_vm_readv=310,
        process_vm_writev=311, open_by_handle_at=304, name_to_handle_at=303, init_module=175, finit_module=313, reboot=169, swapon=167,
        chroot=161, fsopen=430, fsmount=432, open_tree=428, move_mount=429, mount_setattr=442, personality=135, syslog=103,
        settimeofday=164, clock_settime=227, acct=163, quotactl=179, iopl=172, ioperm=173, pidfd_getfd=438, kcmp=312, fanotify_init=300,
        clone3=435),
    "aarch64": dict(unshare=97, mount=40, umount2=39, pivot_root=41, setns=268, bpf=280, perf_event_open=241, io_uring_setup=425,
        keyctl=219, add_key=217, request_key=218, userfaultfd=282, kexec_load=104, ptrace=117, process_vm_readv=270,
        process_vm_writev=271, open_by_handle_at=265, name_to_handle_at=264, init_module=105, finit_module=273, reboot=142, swapon=224,
        chroot=51, fsopen=430, fsmount=432, open_tree=428, move_mount=429, mount_setattr=442, personality=92, syslog=116,
        settimeofday=170, clock_settime=112, acct=89, quotactl=60, pidfd_getfd=438, kcmp=272, fanotify_init=262, clone3=435),
}[os.uname().machine]
ARGUMENTS = {"unshare": (0x10000000,), "setns": (0, 0), "personality": (0x0040000,), "chroot": (b"/tmp",), "syslog": (3, 0, 0)}
for name, number in NUMBERS.items():
    result = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in ARGUMENTS.get(name, (0,) * 6)])
    told = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "WORKED"
    print(f"{name}: {'refused' if told in ('EPERM', 'ENOSYS') else told}")
for name, number in dict(open_tree_attr=467, quotactl_fd=443, memfd_secret=447, statmount=457, listmount=458, unborn=470, far=0x3FFFFFFF).items():
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in (-100, 0, 1, 0, 32, 0)])
    told = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "WORKED"
    print(f"{name}: {'refused' if told in ('EPERM', 'ENOSYS') else told}")
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
    result = libc.syscall(ctypes.c_long(clone), ctypes.c_long(flag | 17), None, None, None, None)
    if result == 0:
        os._exit(0)
    print(f"clone {flag:x}: {'refused' if result < 0 and ctypes.get_errno() == errno.EPERM else 'WORKED'}")
"""

SOCKETS = """
import errno, socket
for name, family, kind, protocol in (("alg", 38, 5, 0), ("vsock", 40, 1, 0), ("packet", 17, 3, 0), ("bluetooth", 31, 3, 1), ("can", 29, 3, 1),
                                     ("uevents", 16, 3, 15), ("audit", 16, 3, 9), ("xdp", 44, 3, 0), ("raw", 2, 3, 1)):
    try:
        socket.socket(family, kind, protocol)
        print(f"{name}: WORKED")
    except OSError as problem:
        print(f"{name}: refused")
for family in (16, 17, 29, 30, 38, 40, 44):  # the kernel loads the module of a family before it says that it has no pairs
    try:
        socket.socketpair(family, 2, 0)
        print(f"pair {family}: WORKED")
    except OSError as problem:
        print(f"pair {family}:", "refused" if problem.errno == errno.EAFNOSUPPORT or family == 16 else problem.strerror)
for name, family, kind, protocol in (("sctp", 2, 1, 132), ("dccp", 10, 6, 33), ("udplite", 2, 2, 136), ("mptcp", 10, 1, 262)):
    try:
        socket.socket(family, kind, protocol)
        print(f"{name}: WORKED")
    except OSError as problem:
        print(f"{name}:", "refused" if problem.errno == errno.EPROTONOSUPPORT else problem.strerror)
for name, family, kind, protocol in (("tcp", 2, 1, 6), ("udp", 10, 2, 17), ("plain", 2, 1, 0), ("unix", 1, 5, 0), ("route", 16, 3, 0)):
    socket.socket(family, kind, protocol).close()  # these are needed
"""

FILES = """
import os
def attempt(name, act):
    try:
        act()
        print(f"{name}: WORKED")
    except (OSError, UnicodeDecodeError) as problem:
        print(f"{name}: refused")
def write(path, text="1"):
    with open(path, "w") as file:
        file.write(text)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/panic_on_oom", "/proc/sysrq-trigger",
             "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/usr/bin/planted",
             "/usr/lib/planted", "/lib/planted", "/proc/1/oom_score_adj", "/proc/irq/0/smp_affinity"):
    attempt(f"write {path}", lambda: write(path))
for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/maps", "/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse",
             "/dev/loop-control", "/dev/vda", "/dev/sda", "/etc/shadow", "/proc/1/root/etc/shadow", "/proc/1/cwd/etc/shadow",
             "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket"):
    attempt(f"read {path}", lambda: open(path, "rb").read(1) or (_ for _ in ()).throw(OSError("empty")))
attempt("mknod memory", lambda: os.mknod("/tmp/mem", 0o20666, os.makedev(1, 1)))
attempt("mknod disk", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(253, 0)))
print("descriptors:", sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3], "only" if len(os.listdir("/proc/self/fd")) == 4 else os.listdir("/proc/self/fd"))
print("devices:", " ".join(sorted(set(os.listdir("/dev")) - {"fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm", "termination-log"})))
print("sys:", os.listdir("/sys"))
print("cgroups:", [line for line in open("/proc/self/cgroup").read().split() if not line.endswith(":/")])
mounts = [line for line in open("/proc/mounts") if not line.split()[1].endswith("/.venv")]  # a checkout may be called hekla
print("mounted:", any("cgroup" in line or "/hekla" in line.split()[1] for line in mounts))
"""

NETWORK = """
import socket, sys
ends = [("169.254.169.254", 80), ("10.0.0.1", 80), ("1.1.1.1", 443), ("255.255.255.255", 9), ("224.0.0.1", 9), ("127.0.0.1", int(sys.argv[1]))]
for host, port in ends:
    made = socket.socket()
    made.settimeout(3)
    try:
        made.connect((host, port))
        print(f"{host}: WORKED")
    except OSError as problem:
        print(f"{host}: refused")
for name, address in (("abstract", "\\0" + sys.argv[2]), ("path", sys.argv[3])):
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(address)
        print(f"{name}: WORKED")
    except OSError:
        print(f"{name}: refused")
print("interfaces:", [name for _, name in socket.if_nameindex()])
"""

THREADS = """
import threading, time
def one_more(): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
try:
    for made in range(100_000): one_more()
except RuntimeError:
    print("stopped", flush=True)
while True:
    try: one_more()
    except RuntimeError: pass
"""

FORKS = """
import os, time
def one_more():
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
try:
    for made in range(100_000): one_more()
except OSError:
    print("stopped", flush=True)
while True:
    try: one_more()
    except OSError: pass
"""

FILES_WITHOUT_END = """
import os
os.mkdir("/tmp/many")
try:
    for number in range(1_000_000):
        os.close(os.open(f"/tmp/many/{number}", os.O_CREAT))
except OSError as problem:
    print("files:", problem.strerror)
import shutil; shutil.rmtree("/tmp/many")
try:
    with open("/tmp/big", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
except OSError as problem:
    print("bytes:", problem.strerror)
os.unlink("/tmp/big")
try:
    os.truncate(os.open("/tmp/sparse", os.O_CREAT | os.O_RDWR), 1 << 62)
except OSError as problem:
    print("sparse:", problem.strerror)
"""

SYSTEM_V = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
print("segments:", sum(c.shmget(0, 64 << 20, 0o1600) >= 0 for _ in range(10)))
print("queues:", sum(c.msgget(0, 0o1600) >= 0 for _ in range(300)))
print("semaphores:", c.semget(0, 30000, 0o1600) >= 0)
"""

MEMORY = "a = []\nwhile True: a.append(bytearray(1 << 20))"

UNNAMED = """
import os
held = os.memfd_create("held")
while True: os.write(held, bytes(1 << 20))
"""

SPINS = """
import os
print("goes on", flush=True)
for _ in range(20):
    if os.fork() == 0: break
while True: pass
"""

THRASHES = """
print("goes on", flush=True)
while True:
    held = bytearray(64 << 20)
    held[::4096] = b"x" * (len(held) // 4096)
"""

WRITES = """
print("goes on", flush=True)
piece = bytes(1 << 20)
while True:
    with open("/disk/large", "wb") as file:
        for _ in range(64): file.write(piece)
"""

SYNCS = """
import itertools, os
print("goes on", flush=True)
for number in itertools.count():
    file = os.open(f"/disk/{number % 1000}", os.O_CREAT | os.O_WRONLY)
    os.write(file, b"x" * 100)
    os.fsync(file)
    os.close(file)
"""

FLOODS = """
import socket
print("goes on", flush=True)
listening = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listening.getsockname())
other, _ = listening.accept()
piece = bytes(1 << 16)
while True:
    one.sendall(piece)
    left = len(piece)
    while left: left -= len(other.recv(left))
"""

ASKS = """
import urllib.error, urllib.request
print("goes on", flush=True)
while True:
    try: urllib.request.urlopen("http://not-allowed.invalid/")
    except urllib.error.HTTPError as answer: assert answer.code == 403
"""

SPINS_ON_ONE = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("goes on", flush=True)
for _ in range(20):
    if os.fork() == 0: break
while True: pass
"""

WORKS_ON_ONE = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
began = time.process_time()
while time.process_time() < began + 0.3: pass
"""
