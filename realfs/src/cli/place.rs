//! What the verbs about one topic share: which one, and where its broker is.

use super::connection::{Connection, topic_name};
use plimsoll_core::layout;

/// A topic, and where its broker is.
#[derive(clap::Args, Debug)]
pub(crate) struct Place {
    /// The topic
    #[arg(long, value_name = "TOPIC", value_parser = topic_name, default_value = layout::DEFAULT_TOPIC)]
    pub(crate) topic: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}
