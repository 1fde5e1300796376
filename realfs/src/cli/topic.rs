//! `plimsoll topic`: makes, tells, shows, empties and deletes topics.

use super::connection::{Connection, Failure, exit_code, output, topic_name};
use super::table::Table;
use super::topic_settings::{FLAGS, Flag};
use super::topics;
use clap::{Arg, ArgMatches, Command, Subcommand};
use plimsoll_core::settings::{Definition, Setting, Settings};
use std::io::Write;

/// Make topics, say how they are kept, show, empty and delete them
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll topic create orders --retain-age 7d --capacity 2GiB
  plimsoll topic alter orders --flush interval=50ms,messages=500 --retain-age default
  plimsoll topic show orders
  plimsoll topic purge orders 1200
  plimsoll topic delete orders --yes")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Create(CreateArgs),
    Alter(AlterArgs),
    Show(ShowArgs),
    List(topics::Args),
    Purge(PurgeArgs),
    Delete(DeleteArgs),
}

/// Create a topic
#[derive(clap::Args, Debug)]
struct CreateArgs {
    /// Its name: 1 to 100 of A-Z a-z 0-9 . _ -
    #[arg(value_name = "TOPIC", value_parser = topic_name)]
    topic: String,
    #[command(flatten)]
    words: Words,
    #[command(flatten)]
    connection: Connection,
}

/// Change how a topic is kept; the value `default` takes back what was set
#[derive(clap::Args, Debug)]
struct AlterArgs {
    /// The topic
    #[arg(value_name = "TOPIC", value_parser = topic_name)]
    topic: String,
    #[command(flatten)]
    words: Words,
    #[command(flatten)]
    connection: Connection,
}

/// Show how a topic is kept, and who has said so
#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// The topic
    #[arg(value_name = "TOPIC", value_parser = topic_name, default_value = "default")]
    topic: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Remove the messages before an offset, for good
#[derive(clap::Args, Debug)]
struct PurgeArgs {
    /// The topic
    #[arg(value_name = "TOPIC", value_parser = topic_name)]
    topic: String,
    /// The first message that stays: an offset, or `end` for all that is durable now
    #[arg(value_name = "BEFORE", value_parser = before)]
    before: Before,
    #[command(flatten)]
    connection: Connection,
}

/// Delete a topic with all its messages, or one of its groups
#[derive(clap::Args, Debug)]
struct DeleteArgs {
    /// The topic
    #[arg(value_name = "TOPIC", value_parser = topic_name)]
    topic: String,
    /// Only this group: where it has come to is forgotten
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Do it
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Offset(u64),
    End,
}

fn before(text: &str) -> Result<Before, String> {
    match text {
        "end" => Ok(Before::End),
        _ => text.parse().map(Before::Offset).map_err(|_| "write an offset, or end".to_owned()),
    }
}

/// `name=value` words of a request, made of flags for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words(Vec<(&'static str, String)>);

/// The word that takes a setting back.
const UNSET: &str = "default";

impl Words {
    fn add(&mut self, flag: &Flag, text: &str) -> Result<(), String> {
        if text == UNSET {
            self.0.extend(flag.definitions().map(|row| (row.name, UNSET.to_owned())));
            return Ok(());
        }
        let mut settings = Settings::NONE;
        flag.set(&mut settings, text)?;
        self.0.extend(settings.iter().map(|(row, value)| (row.name, row.show(value))));
        Ok(())
    }
}

impl clap::Args for Words {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(|flag| {
            Arg::new(flag.name)
                .long(flag.name)
                .value_name(flag.value())
                .help(flag.help)
                .value_parser(move |text: &str| Words::default().add(flag, text).map(|()| text.to_owned()))
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Words::augment_args(command)
    }
}

impl clap::FromArgMatches for Words {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Words, clap::Error> {
        let mut words = Words::default();
        words.update_from_arg_matches(matches)?;
        Ok(words)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.clear();
        for flag in &FLAGS {
            if let Some(text) = matches.get_one::<String>(flag.name) {
                // It was read when the arguments were.
                self.add(flag, text).map_err(|why| clap::Error::raw(clap::error::ErrorKind::ValueValidation, why))?;
            }
        }
        Ok(())
    }
}

/// Does what was asked for.
pub(crate) fn run(args: Args) -> i32 {
    match args.verb {
        Verb::Create(args) => exit_code("topic create", create(&args)),
        Verb::Alter(args) => exit_code("topic alter", alter(&args)),
        Verb::Show(args) => exit_code("topic show", show(&args)),
        Verb::List(args) => topics::run(args),
        Verb::Purge(args) => exit_code("topic purge", purge(&args)),
        Verb::Delete(args) => exit_code("topic delete", delete(&args)),
    }
}

fn say(sentence: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = output();
    writeln!(out, "{sentence}")?;
    Ok(out.flush()?)
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    args.connection.connect()?.create_with(&args.topic, &args.words.0)?;
    say(format_args!("created {}", args.topic))
}

fn alter(args: &AlterArgs) -> Result<(), Failure> {
    if args.words.0.is_empty() {
        let flags = FLAGS.each_ref().map(|flag| format!("--{}", flag.name)).join(", ");
        return Err(Failure::Usage(format!("say what is to be changed: {flags}")));
    }
    args.connection.connect()?.alter(&args.topic, &args.words.0)?;
    say(format_args!("altered {}", args.topic))
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let shown = args.connection.connect()?.settings(Some(&args.topic))?;
    if args.json {
        let object = |(name, value, origin): &(String, String, String)| {
            let value = value.parse::<u64>().map_or_else(|_| serde_json::Value::from(value.as_str()), Into::into);
            (name.clone(), serde_json::json!({ "value": value, "origin": origin }))
        };
        let settings: serde_json::Map<_, _> = shown.iter().map(object).collect();
        return say(serde_json::json!({ "topic": args.topic, "settings": settings }));
    }
    let find = |row: &Definition| shown.iter().find(|(name, ..)| name == row.name);
    let number = |setting: Setting| {
        let row = &plimsoll_core::settings::SETTINGS[setting as usize];
        find(row).and_then(|(_, value, _)| row.parse(value).ok()).unwrap_or(row.default)
    };
    let mut table = Table::new(&["setting", "value", "from"]);
    for flag in &FLAGS {
        // One that makes two settings is the topic's when either is.
        let origins: Vec<&str> = flag.definitions().filter_map(find).map(|(_, _, origin)| origin.as_str()).collect();
        let origin = ["topic", "broker", "default"].into_iter().find(|word| origins.contains(word)).unwrap_or("-");
        table.row([flag.name.to_owned(), flag.show(number), origin.to_owned()]);
    }
    let mut out = output();
    table.print(&mut out)?;
    Ok(out.flush()?)
}

fn purge(args: &PurgeArgs) -> Result<(), Failure> {
    let mut client = args.connection.connect()?;
    let before = match args.before {
        Before::Offset(offset) => offset,
        Before::End => client.status(Some(&args.topic))?.durable,
    };
    let start = client.purge(Some(&args.topic), before)?;
    say(format_args!("topic {} begins at {start}", args.topic))
}

fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let DeleteArgs { topic, group, .. } = args;
    if !args.yes {
        let what = match group {
            Some(group) => format!("where group {group} of topic {topic} has come to would be forgotten"),
            None => format!("topic {topic} would go with all its messages and groups"),
        };
        return Err(Failure::Usage(format!("{what}; say so with --yes")));
    }
    args.connection.connect()?.delete(topic, group.as_deref())?;
    match group {
        Some(group) => say(format_args!("deleted group {group} of {topic}")),
        None => say(format_args!("deleted {topic}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    fn words(args: &[&str]) -> Result<Words, clap::Error> {
        let command = Words::augment_args(Command::new("alter").no_binary_name(true));
        Words::from_arg_matches(&command.try_get_matches_from(args)?)
    }

    #[test]
    fn flags_for_people_become_words_of_the_protocol() {
        let made = words(&["--flush", "interval=50ms", "--retain-age", "7d", "--capacity", "default"]).expect("flags");
        let words: Vec<String> = made.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            words,
            ["flush-interval-ms=50", "flush-messages=0", "retain-ms=604800000", "capacity-bytes=default"]
        );
    }

    #[test]
    fn a_mistake_names_the_flag_and_what_to_write() {
        let told = words(&["--retain-age", "7"]).expect_err("a mistake").to_string();
        assert!(told.contains("--retain-age <TIME|off>") && told.contains("30s"), "{told}");
        assert_eq!(before("end"), Ok(Before::End));
        assert_eq!(before("12"), Ok(Before::Offset(12)));
        assert_eq!(before("yesterday").unwrap_err(), "write an offset, or end");
    }
}
