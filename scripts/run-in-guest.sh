#!/usr/bin/env bash
# Runs a program in a guest machine whose kernel has real dma-bufs: udmabuf, the system DMA heap, and vgem as a DRM device.
# No GPU and no KVM are needed: QEMU emulates the machine, and Debian's own kernel boots in it within a few seconds.
#
#   scripts/run-in-guest.sh [OPTION]... PROGRAM [ARGUMENT]...
#
# PROGRAM runs as root. Its standard output and standard error come through, its exit status becomes this script's.
#
#   -m MIB        the guest's memory (1024)
#   -c N          its processors (2)
#   -t SECONDS    how long it may take (120)
#   -f FILE       take FILE along, to the same path in the guest (programs that PROGRAM starts, files that it reads)
#   -r            let PROGRAM see the host's files, read-only, and its dynamic libraries with them; without it PROGRAM must be
#                 static, and sees a guest with nothing but busybox. /tmp is the guest's own and writable either way, but
#                 for the working directory, which is seen wherever it lies.
#   -e NAME=VALUE set an environment variable
#   -k PARAMETER  add a kernel parameter, such as udmabuf.size_limit_mb=1024
#
# QEMU's emulation now and then crashes a kernel that patches itself while it boots. A guest that ended so before PROGRAM was
# started is booted again, twice at most, and that is said.
#
# Exit status besides PROGRAM's: 124 it took too long, 125 the guest ended without PROGRAM's status (the end of its console
# follows on standard error), 126 the guest could not be set up.
#
# Kernel, busybox, and QEMU if the machine has none are fetched once, from Debian's archive, to ~/.cache/kvshare-guest (or
# $KVSHARE_GUEST_CACHE); nothing is installed. KVSHARE_GUEST_ACCEL is QEMU's accelerator, tcg,thread=multi unless set (kvm is
# faster where the machine grants it).
set -euo pipefail

cache=${KVSHARE_GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvshare-guest}/v1
qemu_files=$(dirname "$cache")/qemu
modules=(drm drm_kms_helper drm_shmem_helper vgem netfs 9pnet 9pnet_virtio 9p)

say() { printf 'run-in-guest: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 126
}

# ---- What the host needs, once

# Debian's QEMU with what it needs beyond what is installed, unpacked beside the kernel and not installed: where another
# version of one of QEMU's packages is there (qemu-utils from the backports, say), apt would have to remove that.
fetch_qemu() {
  [[ $(dpkg --print-architecture 2>/dev/null) == amd64 ]] || fail "an amd64 machine with Debian or one of its kin is needed"
  local unpacking=$qemu_files.part packages package
  say "fetching qemu-system-x86 to $qemu_files"
  ((EUID != 0)) || apt-get update -qq || say "the package lists could not be renewed; trying with those that are here"
  mapfile -t packages < <(apt-get --simulate --quiet --no-install-recommends install qemu-system-x86 | awk '$1 == "Inst" { print $2 }')
  ((${#packages[@]} > 0)) || fail "apt knows no qemu-system-x86; are the package lists there (apt-get update)?"
  rm -rf "$unpacking"
  mkdir -p "$unpacking/packages"
  (cd "$unpacking/packages" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" >&2) ||
    fail "QEMU's packages could not be downloaded; renew the package lists (apt-get update) and try again"
  for package in "$unpacking"/packages/*.deb; do dpkg-deb --extract "$package" "$unpacking"; done
  rm -rf "$unpacking/packages" "$qemu_files"
  mv "$unpacking" "$qemu_files"
}

# The machine's own QEMU, else the unpacked one, with its libraries and its firmware.
qemu_system() {
  if command -v qemu-system-x86_64 >/dev/null; then
    exec qemu-system-x86_64 "$@"
  fi
  local libraries=$qemu_files/usr/lib/x86_64-linux-gnu
  export LD_LIBRARY_PATH="$libraries:$qemu_files/lib/x86_64-linux-gnu:$libraries/pulseaudio"
  exec "$qemu_files/usr/bin/qemu-system-x86_64" -L "$qemu_files/usr/share/qemu" -L "$qemu_files/usr/share/seabios" "$@"
}

# The package with Debian's kernel: 6.12 by name where a release has it beside an older one, else the release's own.
kernel_package() {
  local meta package
  for meta in linux-image-6.12-amd64 linux-image-amd64; do
    package=$(apt-cache depends "$meta" 2>/dev/null | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
    if [[ -n $package ]]; then
      echo "$package"
      return
    fi
  done
}

# Fills $cache with vmlinuz, busybox and base.cpio. It gets its name only when it is whole.
fetch_guest() {
  local work=$cache.new kernel busybox
  rm -rf "$work"
  mkdir -p "$work/packages" "$work/root"/{bin,dev,etc,mnt,modules,proc,root,run,sys,tmp}
  kernel=$(kernel_package)
  if [[ -z $kernel ]]; then
    apt-get update -qq || true
    kernel=$(kernel_package)
  fi
  [[ -n $kernel ]] || fail "apt knows no package linux-image-amd64; are the package lists there (apt-get update)?"
  say "fetching $kernel and busybox-static to $cache"
  (cd "$work/packages" && apt-get download -qq -o APT::Sandbox::User=root "$kernel" busybox-static >&2) ||
    fail "$kernel and busybox-static could not be downloaded; renew the package lists (apt-get update) and try again"

  dpkg-deb --extract "$work"/packages/busybox-static_*.deb "$work/busybox-files"
  busybox=$(find "$work/busybox-files" -path '*/bin/busybox' -print -quit)
  cp "$busybox" "$work/busybox"
  cp "$busybox" "$work/root/bin/busybox"

  local wanted=("./boot/vmlinuz-*" "./boot/config-*") module file
  for module in "${modules[@]}"; do wanted+=("*/$module.ko*"); done
  mkdir "$work/kernel-files"
  dpkg-deb --fsys-tarfile "$work"/packages/linux-image-*.deb | tar -x -C "$work/kernel-files" --wildcards "${wanted[@]}"
  for option in CONFIG_UDMABUF=y CONFIG_DMABUF_HEAPS_SYSTEM=y; do
    grep -qx "$option" "$work"/kernel-files/boot/config-* || fail "the kernel of $kernel was built without $option"
  done
  mv "$work"/kernel-files/boot/vmlinuz-* "$work/vmlinuz"
  for module in "${modules[@]}"; do
    file=$(find "$work/kernel-files" -name "$module.ko*" -print -quit)
    case $file in
      *.xz) "$work/busybox" xz -dc "$file" ;;
      *.zst) zstd -dc "$file" ;;
      *) cat "$file" ;;
    esac >"$work/root/modules/$module.ko"
  done

  pack "$work/root" "$work/busybox" >"$work/base.cpio"
  rm -rf "$work/packages" "$work/root" "$work/busybox-files" "$work/kernel-files"
  rm -rf "$cache"
  mv "$work" "$cache"
}

pack() { (cd "$1" && find . | "$2" cpio -o -H newc 2>/dev/null); }

set_up_host() {
  mkdir -p "$(dirname "$cache")"
  # Several runs may start at once on a bare machine; one sets it up.
  exec 9>"$cache.lock"
  flock 9
  command -v qemu-system-x86_64 >/dev/null || [[ -d $qemu_files ]] || fetch_qemu
  [[ -s $cache/base.cpio ]] || fetch_guest
  exec 9>&-
}

# ---- One run

quoted() { printf "'%s' " "${1//\'/\'\\\'\'}"; }

# The guest's first program.
guest_init() {
  cat <<'LINES'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t debugfs debugfs /sys/kernel/debug
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
ip link set lo up
for module in drm drm_kms_helper drm_shmem_helper vgem; do insmod /modules/$module.ko; done
echo started >/dev/vport0p3
. /guest-command
echo $? >/dev/vport0p3
sync
poweroff -f
LINES
}

# The shell lines that it runs last, leaving PROGRAM's status.
guest_command() {
  local setting argument
  if ((host_files)); then
    cat <<'LINES'
for module in netfs 9pnet 9pnet_virtio 9p; do insmod /modules/$module.ko; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /mnt
LINES
    # What the guest's own /tmp and /run would hide.
    if [[ $PWD == /tmp/* || $PWD == /run/* ]]; then
      echo "mkdir -p $(quoted "$PWD") && mount --bind $(quoted "/mnt$PWD") $(quoted "$PWD")"
    fi
    echo 'for folder in proc sys dev tmp run; do mount --rbind /$folder /mnt/$folder; done'
  fi
  for setting in ${settings[@]+"${settings[@]}"}; do echo "export $(quoted "$setting")"; done
  ((!host_files)) || printf 'chroot /mnt /usr/bin/env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin '
  for argument in "$program" "$@"; do quoted "$argument"; done
  echo '</dev/null >/dev/vport0p1 2>/dev/vport0p2'
}

take_along() {
  mkdir -p "$work/root$(dirname "$1")"
  cp -L "$1" "$work/root$1"
}

# shellcheck disable=SC2317 # the trap below calls it
end_run() {
  local status=$?
  [[ -z ${qemu:-} ]] || kill "$qemu" 2>/dev/null || true
  rm -rf "$work"
  exit "$status"
}

memory=1024 processors=2 limit=120 host_files=0 files=() settings=() parameters=()
while getopts m:c:t:f:re:k: option; do
  case $option in
    m) memory=$OPTARG ;;
    c) processors=$OPTARG ;;
    t) limit=$OPTARG ;;
    f) files+=("$(realpath -e "$OPTARG")") || fail "there is no file $OPTARG" ;;
    r) host_files=1 ;;
    e) settings+=("$OPTARG") ;;
    k) parameters+=("$OPTARG") ;;
    *) fail "the options are described at the top of $0" ;;
  esac
done
shift $((OPTIND - 1))
(($# > 0)) || fail "no program was named; the options are described at the top of $0"
program=$(realpath -e "$1") || fail "there is no program $1"
[[ -x $program ]] || fail "$program is not executable"
shift

set_up_host
work=$(mktemp -d)
trap end_run EXIT
mkdir "$work/root"
# With the host's files in sight only what lies in the guest's own folders has to be taken along.
for file in ${files[@]+"${files[@]}"} "$program"; do
  if ((!host_files)) || [[ $file == /tmp/* || $file == /run/* ]]; then take_along "$file"; fi
done
guest_init >"$work/root/init"
chmod 755 "$work/root/init"
guest_command "$@" >"$work/root/guest-command"
{ cat "$cache/base.cpio" && pack "$work/root" "$cache/busybox"; } >"$work/initrd"

devices=()
((!host_files)) || devices=(
  -fsdev "local,id=host,path=/,security_model=none,multidevs=remap,readonly=on"
  -device "virtio-9p-pci,fsdev=host,mount_tag=host"
)
# Boots the guest once; leaves what it said of PROGRAM in "$work/status", and in $ended how QEMU ended.
boot() {
  rm -f "$work"/{out,err,status,console}
  mkfifo "$work/out" "$work/err"
  cat "$work/out" &
  readers=($!)
  cat "$work/err" >&2 &
  readers+=($!)
  timeout --kill-after 5 "$limit" bash -c 'qemu_system "$@"' qemu \
    -M q35 -accel "${KVSHARE_GUEST_ACCEL:-tcg,thread=multi}" -cpu max -smp "$processors" -m "$memory" \
    -nodefaults -no-user-config -display none -monitor none -no-reboot \
    -kernel "$cache/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 oops=panic mitigations=off ${parameters[*]-}" \
    -chardev "file,id=console,path=$work/console" -serial chardev:console \
    -device virtio-serial-pci,max_ports=8 \
    -chardev "file,id=out,path=$work/out" -device virtserialport,nr=1,chardev=out \
    -chardev "file,id=err,path=$work/err" -device virtserialport,nr=2,chardev=err \
    -chardev "file,id=status,path=$work/status" -device virtserialport,nr=3,chardev=status \
    ${devices[@]+"${devices[@]}"} </dev/null >"$work/qemu" 2>&1 &
  qemu=$!
  ended=0
  wait "$qemu" || ended=$?
  qemu=
  # Had QEMU never opened the pipes, their readers would wait for ever.
  : 7<>"$work/out" 8<>"$work/err"
  wait "${readers[@]}" || true
}

export -f qemu_system
export qemu_files
for attempt in 1 2 3; do
  boot
  # QEMU itself may have refused, which it would do again.
  if ((ended != 0)) || grep -q started "$work/status" 2>/dev/null; then break; fi
  ((attempt == 3)) || say "the guest's kernel crashed before the program was started; booting it again"
done

status=$(tail -n 1 "$work/status" 2>/dev/null || true)
if [[ $status =~ ^[0-9]+$ ]]; then exit "$status"; fi
if ((ended == 124)); then say "the program had not ended after $limit s (-t)"; else say "the guest ended without a status"; fi
{
  cat "$work/qemu"
  tail -n 25 "$work/console" 2>/dev/null
} >&2 || true
((ended == 124)) && exit 124
exit 125
