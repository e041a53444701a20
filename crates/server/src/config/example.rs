//! A complete configuration with comments, to begin from.

/// Everything but Kafka.
const EXAMPLE: &str = include_str!("example.toml");

/// A Kafka destination, for a binary that can use it.
const EXAMPLE_KAFKA: &str = include_str!("example-kafka.toml");

/// An example that this binary accepts as it stands.
pub fn example() -> String {
    if cfg!(feature = "kafka") {
        format!("{EXAMPLE}{EXAMPLE_KAFKA}")
    } else {
        EXAMPLE.to_owned()
    }
}
