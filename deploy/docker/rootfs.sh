#!/usr/bin/env bash
# Lays out an image's file system: the program, the libraries that it loads by itself (in /opt/cuda), what both are
# linked to, and what they read. No shell.
#
#   rootfs.sh PROGRAM FOLDER [LIBRARY…]
set -euo pipefail
program=$1 root=$2
libraries=("${@:3}")

mkdir -p "$root"/{usr/bin,etc/ssl/certs,dev,proc,sys}
install -m 755 "$program" "$root/usr/bin/quire"

# libc, libm, libgcc_s and the loader, at the paths that the program names; libstdc++ and so on of the libraries.
for file in "$program" "${libraries[@]}"; do
    ldd "$file" | { grep -o '/[^ ]*' || true; } | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp --dereference "$library" "$root$library"
    done
done
for library in "${libraries[@]}"; do install -D -m 644 -t "$root/opt/cuda" "$library"; done

cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'root:x:0:0::/root:/\nquire:x:65532:65532::/tmp:/\n' > "$root/etc/passwd"
printf 'root:x:0:\nquire:x:65532:\n' > "$root/etc/group"
printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"

# What is written: sockets, the built-in model, and models of the hub where no volume takes their place. Any user may,
# so that `--user` can name the owner of a mounted cache.
mkdir -p "$root/tmp" "$root/root/.cache/huggingface"
chmod 1777 "$root/tmp" "$root/root/.cache/huggingface"
