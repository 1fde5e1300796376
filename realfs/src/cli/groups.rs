//! `plimsoll groups`: the groups of a topic and how far behind they are.

use super::connection::{Failure, exit_code};
use super::place::Listing;
use plimsoll_core::protocol::GroupStatus;

/// List the groups of a topic: committed offset, lag, and whether a consumer is connected
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll groups
  plimsoll groups --topic orders --json
  plimsoll groups --all")]
pub(crate) struct Args {
    #[command(flatten)]
    listing: Listing,
}

/// Prints the groups.
pub(crate) fn run(args: Args) -> i32 {
    exit_code("groups", groups(&args.listing))
}

fn groups(listing: &Listing) -> Result<(), Failure> {
    listing.print(
        |client, topic| client.groups(Some(topic)),
        ["group", "committed", "lag", "held"],
        |GroupStatus { group, committed, lag, held }| {
            let held = if *held { "yes" } else { "no" };
            [group.clone(), committed.to_string(), lag.to_string(), held.to_owned()]
        },
        |GroupStatus { group, committed, lag, held }| {
            serde_json::json!({ "group": group, "committed": committed, "lag": lag, "held": held })
        },
    )
}
