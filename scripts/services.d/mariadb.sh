# MariaDB, from the system's packages: one server with an empty database and a user who may do
# everything there. Run by root, the server is the user nobody.

mariadb_install() {
    # The cores alone: the whole packages would set up a server of the system and start it.
    [ -x "$(mariadb_server)" ] || missing+=(mariadb-server-core)
    require_command mariadb mariadb-client-core
    install_missing
}

# Where Debian keeps it is on root's path only.
mariadb_server() {
    command -v mariadbd || echo /usr/sbin/mariadbd
}

mariadb_user() {
    if [ "$(id -u)" = 0 ]; then echo nobody; else id -un; fi
}

mariadb_prepare() {
    local dir=$1
    free_port >"$dir/port"
    mkdir "$dir/data"
    cat >"$dir/first.sql" <<'END'
CREATE DATABASE IF NOT EXISTS wayhold CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS wayhold@'127.0.0.1' IDENTIFIED BY 'wayhold';
GRANT ALL PRIVILEGES ON *.* TO wayhold@'127.0.0.1' WITH GRANT OPTION;
END
    if [ "$(id -u)" = 0 ]; then
        # Only the way through the folder above is open to that user.
        chmod o+x "$folder"
        chown -R nobody "$dir"
    fi
    mariadb-install-db --no-defaults --user="$(mariadb_user)" --datadir="$dir/data" \
        --auth-root-authentication-method=normal --skip-test-db >"$dir/install.log" 2>&1 || {
        tail -n 20 "$dir/install.log" >&2
        fail 1 "MariaDB's data could not be made"
    }
}

mariadb_command() {
    command=("$(mariadb_server)" --no-defaults --user="$(mariadb_user)"
        --datadir="$1/data" --pid-file="$1/server.pid" --socket="$1/socket" --tmpdir="$1"
        --bind-address=127.0.0.1 --port="$(cat "$1/port")" --skip-name-resolve
        --innodb-buffer-pool-size=64M --init-file="$1/first.sql")
}

mariadb_answers() {
    mariadb --no-defaults --host=127.0.0.1 --port="$(cat "$1/port" 2>/dev/null || echo 0)" \
        --user=wayhold --password=wayhold --execute='SELECT 1' wayhold >/dev/null 2>&1
}

mariadb_env() {
    echo "export WAYHOLD_TEST_MARIADB=mysql://wayhold:wayhold@127.0.0.1:$(cat "$1/port")/wayhold"
}
