//! Every bound on an event's own fields, with its reason. Bounds on queues, files and connections
//! live with the part that owns them.

/// Longest `id`, in bytes. Ids are UUIDs, hashes or business numbers; the longest seen in public
/// webhook payloads is below 200.
pub const ID_BYTES_MAX: usize = 1024;

/// Longest `source`, in bytes: a URI-reference, held to what common HTTP servers take as a URL.
pub const SOURCE_BYTES_MAX: usize = 2048;

/// Longest `type`, in bytes: a dotted name; Kafka topics, which it often becomes, end at 249.
pub const TYPE_BYTES_MAX: usize = 512;

/// Longest `subject`, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 1024;

/// Longest ordering key, in bytes: it is hashed for every delivery and becomes a Kafka record key.
pub const KEY_BYTES_MAX: usize = 1024;

/// Longest `datacontenttype`, in bytes.
pub const CONTENT_TYPE_BYTES_MAX: usize = 256;

/// Longest `dataschema`, in bytes: a URI like `source`.
pub const DATASCHEMA_BYTES_MAX: usize = 2048;

/// Longest `time`, in bytes: RFC 3339 with nanoseconds and offset has 35.
pub const TIME_BYTES_MAX: usize = 64;

/// Most extension attributes of one event: each becomes a header, and receivers cap those near 100.
pub const EXTENSIONS_MAX: usize = 64;

/// Longest extension name, in bytes. CloudEvents asks for at most 20; some registered names exceed it.
pub const EXTENSION_NAME_BYTES_MAX: usize = 64;

/// Most bytes of all extension attributes together, as JSON: they travel as headers, and receivers cap
/// those near 32 KiB.
pub const EXTENSIONS_BYTES_MAX: usize = 16 * 1024;
