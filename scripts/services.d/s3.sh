# An S3 with one empty bucket: Python packages in an environment of their own, and the server beside this file, which
# checks signatures as Amazon's own client makes them. It keeps what it has in memory.

s3_version=5.2.5
s3_environment=$cache/s3-$s3_version

s3_install() {
    require_command python3 python3
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    install_missing
    [ ! -f "$s3_environment/complete" ] || return 0
    echo "fetching moto $s3_version into $s3_environment" >&2
    mkdir -p "$cache"
    local work
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    if ! { python3 -m venv "$work" &&
        timeout 600 "$work/bin/python3" -m pip install --quiet --disable-pip-version-check \
            "moto[s3]==$s3_version" flask flask-cors; } >"$work/log" 2>&1; then
        tail -n 20 "$work/log" >&2
        rm -rf "$work"
        fail 1 "pip could not fetch moto $s3_version"
    fi
    # Whole or not at all: another run may be fetching, too.
    touch "$work/complete"
    rm -rf "$s3_environment"
    mv -T "$work" "$s3_environment" 2>/dev/null || [ -f "$s3_environment/complete" ]
    rm -rf "$work"
}

s3_prepare() {
    free_port >"$1/port"
}

s3_command() {
    # By its interpreter, which finds its packages wherever the environment was moved.
    command=("$s3_environment/bin/python3" "$root/scripts/services.d/s3_server.py"
        "$(cat "$1/port")" wayhold wayhold-key wayhold-secret)
}

s3_answers() {
    port_answers "$(cat "$1/port" 2>/dev/null || echo 0)"
}

s3_env() {
    echo "export WAYHOLD_TEST_S3=http://127.0.0.1:$(cat "$1/port")"
}
