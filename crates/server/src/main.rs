//! The one shipped binary.

use mimalloc::MiMalloc;
use wayhold::cli::{self, exit::Exit};

/// Events are allocated by one thread and freed by another, all the time: the C library's allocator
/// takes a lock for that, which cost a quarter of the time spent on an event.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Exit {
    cli::run()
}
