//! Topics on the broker that is measured against.

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use crate::BenchError;

/// Makes a topic with so many partitions.
///
/// # Errors
/// When the broker cannot be reached or refuses.
pub fn create(bootstrap: &str, name: &str, partitions: i32) -> Result<(), BenchError> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .create()?;
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let made = runtime.block_on(admin.create_topics([&topic], &AdminOptions::new()))?;
    for result in made {
        result.map_err(|(name, code)| format!("topic {name} cannot be made: {code}"))?;
    }
    Ok(())
}
