//! What the verbs about one topic share: which one, and where its broker is. Lists of what topics have, for one topic or for all.

use super::connection::{Connection, Failure, output, topic_name};
use super::table::Table;
use crate::client::{Client, Error};
use plimsoll_core::layout;
use serde_json::Value;
use std::io::Write;

/// A topic, and where its broker is.
#[derive(clap::Args, Debug)]
pub(crate) struct Place {
    /// The topic
    #[arg(long, value_name = "TOPIC", value_parser = topic_name, default_value = layout::DEFAULT_TOPIC)]
    pub(crate) topic: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// What to list, and how.
#[derive(clap::Args, Debug)]
pub(crate) struct Listing {
    /// List those of every topic
    #[arg(long, conflicts_with = "topic")]
    all: bool,
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Place,
}

impl Listing {
    /// Asks about the topic, or about every one, and prints what each of them has: the name of its topic first, then `row` below `heads`.
    pub(crate) fn print<T, const CELLS: usize>(
        &self,
        ask: impl Fn(&mut Client, &str) -> Result<Vec<T>, Error>,
        heads: [&str; CELLS],
        row: impl Fn(&T) -> [String; CELLS],
        object: impl Fn(&T) -> Value,
    ) -> Result<(), Failure> {
        let mut client = self.at.connection.connect()?;
        let topics = if self.all { client.topics()? } else { vec![self.at.topic.clone()] };
        let mut table = Table::new(&[&["topic"][..], &heads].concat());
        let mut objects = Vec::new();
        for topic in topics {
            for found in ask(&mut client, &topic)? {
                table.row([topic.clone()].into_iter().chain(row(&found)));
                let mut object = object(&found);
                object["topic"] = topic.as_str().into();
                objects.push(object);
            }
        }
        let mut out = output();
        match self.json {
            true => writeln!(out, "{}", Value::from(objects))?,
            false => table.print(&mut out)?,
        }
        Ok(out.flush()?)
    }
}
