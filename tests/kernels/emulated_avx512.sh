#!/usr/bin/env bash
# Runs the AVX-512 half of the kernel tests on a machine without AVX-512: links kernels_test
# statically, boots it as the only program of a Linux in Bochs, an emulator that executes those
# instructions, and prints its output. For Debian 12 on x86-64; takes minutes.
#
#   bash tests/kernels/emulated_avx512.sh                      all /avx512 variants but two
#   bash tests/kernels/emulated_avx512.sh '*Matmul*/avx512'    another GoogleTest filter
#
# Succeeds only if the emulated processor had AVX-512 and every named test ran and passed.
# SPECD_EMULATION_LIMIT limits the run time in seconds (3600).
#
# Two are left out. narrowing_rounds_to_nearest_even fails because of a bug in Bochs 2.7: its
# VCVTPS2PH, also in the AVX2 form, rounds every tie between two float16 up instead of to
# even. follows_the_distribution makes half a million draws, which takes longer than
# everything else together.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. host/install_deps.sh

filter=${1:-*/avx512:-*.narrowing_rounds_to_nearest_even/*:*.follows_the_distribution/*}
limit=${SPECD_EMULATION_LIMIT:-3600}
build=$PWD/build/emulated_avx512
machine=$build/machine

fail() { echo "emulated_avx512: $*" >&2; exit 1; }

specd_install "${specd_build_packages[@]}" "${specd_test_packages[@]}" bochs bochsbios bochs-term \
    vgabios isolinux syslinux-common xorriso cpio busybox-static || fail "packages are missing"

cmake -S . -B "$build" -G Ninja -DSPECD_HOST=OFF -DSPECD_TESTS=ON \
    -DCMAKE_EXE_LINKER_FLAGS=-static \
    -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache > /dev/null
cmake --build "$build" --target kernels_test
expected=$("$build/bin/kernels_test" --gtest_list_tests --gtest_filter="$filter" | grep -c '^  ') ||
  fail "no test matches $filter"

# Unpack a kernel without installing it.
kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p')
[ -n "$kernel" ] || fail "apt knows no linux-image-cloud-amd64: run apt-get update"
vmlinuz=$build/$kernel/boot/vmlinuz-${kernel#linux-image-}
if [ ! -f "$vmlinuz" ]; then
  (cd "$build" && apt-get -q download "$kernel" && dpkg-deb -x "$kernel"_*.deb "$kernel" &&
   rm "$kernel"_*.deb) || fail "could not fetch $kernel"
fi

# The boot medium: a CD with the kernel and, as its whole file system, the test.
rm -rf "$machine"
mkdir -p "$machine"/{cd,root/{bin,proc}}
cp /bin/busybox "$machine/root/bin/"
strip -o "$machine/root/kernels_test" "$build/bin/kernels_test"
cat > "$machine/root/init" << END
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox grep -m1 ^flags /proc/cpuinfo
/kernels_test --gtest_color=no --gtest_filter='$filter'
echo "kernels_test ended with \$?"
/bin/busybox sleep 1  # the serial port is still sending
/bin/busybox poweroff -f
END
chmod +x "$machine/root/init"
(cd "$machine/root" && find . | cpio -o -H newc --quiet) > "$machine/cd/initrd"
cp "$vmlinuz" "$machine/cd/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$machine/cd/"
# Bochs 2.7 reports a wrong size of the XSAVEC area, which would make Linux disable XSAVE
# completely. Its TSC counts instructions, at a rate far from what Linux assumes.
cat > "$machine/cd/isolinux.cfg" << END
default linux
label linux
kernel vmlinuz
append initrd=initrd console=ttyS0,115200 loglevel=1 mitigations=off panic=-1 clearcpuid=xsaves,xsavec clocksource=hpet
END
xorriso -as mkisofs -quiet -o "$machine/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot \
    -boot-load-size 4 -boot-info-table "$machine/cd" 2> /dev/null

# The guest's clock counts instructions (ips per second), so reported times mean nothing.
cat > "$machine/bochsrc" << END
config_interface: textconfig
display_library: term
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: count=1, model=corei7_skylake_x, ips=100000000, reset_on_triple_fault=0
memory: guest=512, host=512
clock: sync=none
speaker: enabled=0
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$machine/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$machine/serial
log: $machine/bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
END
# Debian's Bochs is built with the debugger and a terminal display; `script` provides the terminal.
printf 'continue\nquit\n' > "$machine/commands"
: > "$machine/serial"
start=$SECONDS
TERM=vt100 timeout -k 10 "$limit" script -fqec \
    "bochs-bin -q -f '$machine/bochsrc' -rc '$machine/commands'" "$machine/screen" \
    < /dev/null > /dev/null 2>&1 &
emulator=$!
trap 'kill $emulator 2> /dev/null || true' EXIT
tail -n +1 -f --pid=$emulator "$machine/serial" | sed -u 's|\r$||'
wait $emulator || true  # Bochs treats power-off as an error, so only the output counts
trap - EXIT

said() { tr -d '\r' < "$machine/serial" | grep -E "$@"; }
[ -s "$machine/serial" ] || fail "nothing booted: see $machine/screen and bochs.log"
for flag in avx512f avx512bw avx512vl avx512dq; do
  said -q "^flags.* $flag( |$)" || fail "the emulated processor has no $flag"
done
said -q '^kernels_test ended with ' ||
  fail "the machine ended before the tests did, after $((SECONDS - start)) of $limit s"
said -q '^kernels_test ended with 0$' || fail "a test failed"
passed=$(said -c '^\[       OK \] ' || true)
[ "$passed" -eq "$expected" ] || fail "$expected tests were to run, $passed did"
echo "emulated_avx512: $passed tests passed in $((SECONDS - start)) s"
