//! The one shipped binary.

use wayhold::cli::{self, exit::Exit};

fn main() -> Exit {
    cli::run()
}
