#!/usr/bin/env bash
# Lays out an image's file system: the program, the libraries that it is linked to, and what they read. No shell.
#
#   rootfs.sh PROGRAM FOLDER
set -euo pipefail
program=$1 root=$2

mkdir -p "$root"/{usr/bin,etc/ssl/certs,dev,proc,sys}
install -m 755 "$program" "$root/usr/bin/quire"

# libc, libm, libgcc_s and the loader, at the paths that the program names.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp --dereference "$library" "$root$library"
done

cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'root:x:0:0::/root:/\nquire:x:65532:65532::/tmp:/\n' > "$root/etc/passwd"
printf 'root:x:0:\nquire:x:65532:\n' > "$root/etc/group"
printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"

# What is written: sockets, the built-in model, and models of the hub where no volume takes their place. Any user may,
# so that `--user` can name the owner of a mounted cache.
mkdir -p "$root/tmp" "$root/run/quire" "$root/root/.cache/huggingface"
chmod 1777 "$root/tmp" "$root/run/quire" "$root/root/.cache/huggingface"
