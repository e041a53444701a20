//! What the demo and the drills play with: a server of their own that may be killed, a receiver, producers
//! that tell a story, and a proof that knows the story and not the server. Modules in suggested reading
//! order.

pub mod story;

pub mod proof;

pub mod receiver;

pub mod server;

pub mod books;

pub mod producer;

pub mod distribution;
