# Sourced by the other scripts: looks for what they need and installs it where that is allowed, or says
# the one line that does. Knows Debian and Ubuntu.

missing=()

# require_command COMMAND PACKAGE
require_command() {
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

# require_header HEADER PACKAGE
require_header() {
    echo "#include <$1>" | cc -E - >/dev/null 2>&1 || missing+=("$2")
}

# require_java   a Java that runs Apache Kafka 4: 17 or newer
require_java() {
    local have=0 package=default-jre-headless
    if command -v java >/dev/null 2>&1; then
        have=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    fi
    [ "${have:-0}" -lt 17 ] || return 0
    # The one supported system whose default is older.
    if grep -q '^VERSION_ID="22.04"' /etc/os-release 2>/dev/null; then
        package=openjdk-17-jre-headless
    fi
    missing+=("$package")
}

# require_rust COMPONENT...   cargo of the version this workspace asks for
require_rust() {
    local root=$1 wanted have component
    shift
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    if ! command -v cargo >/dev/null 2>&1; then
        echo "Rust is missing. Install it (and open a new shell) with:" >&2
        echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y" >&2
        exit 2
    fi
    have=$(cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/')
    if [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" != "$wanted" ]; then
        echo "Rust $have is too old, $wanted or newer is needed:" >&2
        echo "  rustup update stable" >&2
        exit 2
    fi
    for component in "$@"; do
        if ! cargo "$component" --version >/dev/null 2>&1; then
            echo "Rust lacks $component:" >&2
            echo "  rustup component add ${component/fmt/rustfmt}" >&2
            exit 2
        fi
    done
}

# install_missing   installs what was found missing, or prints how and ends
install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    local packages line as_root=""
    packages=$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')
    line="apt-get update && apt-get install -y --no-install-recommends ${packages% }"
    missing=()
    if [ "$(id -u)" != 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            echo "This needs ${packages% }. Install with:" >&2
            echo "  sudo sh -c '$line'" >&2
            exit 2
        fi
        as_root="sudo -n"
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "This needs what Debian calls ${packages% }; there is no apt-get here to install it with." >&2
        exit 2
    fi
    echo "installing ${packages% }" >&2
    DEBIAN_FRONTEND=noninteractive $as_root sh -c "$line" >&2
}
