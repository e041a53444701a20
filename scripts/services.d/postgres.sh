# PostgreSQL, from the system's packages: one server with an empty database and a user who may do
# everything there. Run by root, the server is the user nobody.

postgres_install() {
    [ -n "$(postgres_programs)" ] || missing+=(postgresql)
    require_command psql postgresql-client
    install_missing
}

# Where the server's programs are: Debian keeps each version's in a folder of its own, off the path.
postgres_programs() {
    local newest
    newest=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    if [ -n "$newest" ]; then
        echo "$newest"
    elif command -v initdb >/dev/null 2>&1; then
        dirname "$(readlink -f "$(command -v initdb)")"
    fi
}

# Sets the array `as_user`: what stands before a command that root may not run itself.
postgres_as_user() {
    as_user=()
    if [ "$(id -u)" = 0 ]; then
        as_user=(setpriv --reuid nobody --regid nogroup --clear-groups)
    fi
}

postgres_prepare() {
    local dir=$1 as_user programs
    programs=$(postgres_programs)
    postgres_as_user
    free_port >"$dir/port"
    mkdir "$dir/data"
    if [ "$(id -u)" = 0 ]; then
        # Only the way through the folder above is open to that user.
        chmod o+x "$folder"
        chown -R nobody "$dir"
    fi
    (
        cd "$dir"
        export HOME=$dir
        "${as_user[@]}" "$programs/initdb" --pgdata="$dir/data" --username=wayhold --auth=trust \
            --encoding=UTF8 --locale=C.UTF-8 &&
            printf '%s\n' "wal_level = logical" "listen_addresses = '127.0.0.1'" \
                "unix_socket_directories = ''" "port = $(cat "$dir/port")" \
                "max_connections = 200" "max_wal_senders = 20" "max_replication_slots = 20" \
                "track_commit_timestamp = on" >>"$dir/data/postgresql.conf" &&
            echo "CREATE DATABASE wayhold;" |
            "${as_user[@]}" "$programs/postgres" --single -D "$dir/data" postgres
    ) >"$dir/install.log" 2>&1 || {
        tail -n 20 "$dir/install.log" >&2
        fail 1 "PostgreSQL's data could not be made"
    }
}

# After a kill without warning the server's children end by themselves, most at once, a busy one when its
# statement is done. None may be left when another server opens the same data; then the file that says
# that one runs can be taken for what it is.
postgres_bury() {
    local dir=$1 cwd left waited
    for ((waited = 0; waited < 50; waited++)); do
        left=()
        for cwd in /proc/[0-9]*/cwd; do
            # Asked without another process for each: a busy machine has many.
            if [ "$cwd" -ef "$dir/data" ]; then
                cwd=${cwd%/cwd}
                left+=("${cwd##*/}")
            fi
        done
        [ ${#left[@]} -gt 0 ] || break
        # Those of this data folder, whose server is dead.
        kill -s KILL "${left[@]}" 2>/dev/null || true
        sleep 0.1
    done
    rm -f "$dir/data/postmaster.pid"
}

postgres_command() {
    local as_user
    postgres_as_user
    postgres_bury "$1"
    command=("${as_user[@]}" "$(postgres_programs)/postgres" -D "$1/data")
}

postgres_answers() {
    PGCONNECT_TIMEOUT=5 psql --no-psqlrc --quiet --tuples-only --command='SELECT 1' \
        "$(postgres_url "$1")" >/dev/null 2>&1
}

postgres_url() {
    echo "postgres://wayhold:wayhold@127.0.0.1:$(cat "$1/port" 2>/dev/null || echo 0)/wayhold"
}

postgres_env() {
    echo "export WAYHOLD_TEST_POSTGRES=$(postgres_url "$1")"
}
