#!/bin/sh
# Makes the certificates beside this file; their keys protect nothing. `node` is a member, `expired` was one,
# `stranger` is of another authority.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
printf 'subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost\nbasicConstraints=CA:FALSE\n' >"$work/leaf"
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/$1.key" -out "$1.pem" \
        -days 36500 -subj "/CN=$1" 2>/dev/null
}
leaf() { # NAME AUTHORITY START END
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$work/$1.csr" \
        -subj "/CN=$1" 2>/dev/null
    : >"$work/index"
    printf '[ca]\ndefault_ca=d\n[d]\ndatabase=%s/index\nserial=%s/serial\nnew_certs_dir=%s\npolicy=p\n[p]\ncommonName=supplied\n' \
        "$work" "$work" "$work" >"$work/ca.cnf"
    openssl ca -batch -config "$work/ca.cnf" -rand_serial -md sha256 -cert "$2.pem" -keyfile "$work/$2.key" \
        -in "$work/$1.csr" -out "$1.pem" -notext -startdate "$3" -enddate "$4" -extfile "$work/leaf" 2>"$work/errors" || { cat "$work/errors"; exit 1; }
}
authority authority
authority another-authority
leaf node authority 20250101000000Z 21250101000000Z
leaf expired authority 20250101000000Z 20250201000000Z
leaf stranger another-authority 20250101000000Z 21250101000000Z
