//! What the client verbs share: where the broker is, how a failure is told, which exit code it has.

use super::{EXIT_USAGE, complain};
use crate::client::{Client, Error, Options};
use std::io::{self, BufWriter, StdoutLock};

/// The broker answered `ERR`.
pub(crate) const EXIT_REFUSED: i32 = 1;
/// Nobody answers at the address.
pub(crate) const EXIT_NO_CONNECTION: i32 = 6;
/// The reply did not come: nobody knows whether the request was carried out.
pub(crate) const EXIT_UNKNOWN: i32 = 7;

/// Where the broker is.
#[derive(clap::Args, Debug)]
pub(crate) struct Connection {
    /// Address of the broker
    #[arg(long, value_name = "ADDR", env = "PLIMSOLL_ADDRESS", default_value = "127.0.0.1:7717")]
    pub(crate) address: String,
}

impl Connection {
    /// Connects with the default patience.
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(Options::default())
    }

    /// Connects.
    pub(crate) fn connect_with(&self, options: Options) -> Result<Client, Failure> {
        Ok(Client::connect(&self.address, options)?)
    }
}

/// Why a client verb did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The broker or the way to it.
    Client(Error),
    /// Standard output.
    Output(io::Error),
    /// What was asked for.
    Usage(String),
    /// A broker could not be started.
    Start(String),
    /// A measurement.
    Bench(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Client(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::Output(error.into())
    }
}

/// Tells a failure in one line and turns it into the exit code.
pub(crate) fn exit_code(verb: &str, result: Result<(), Failure>) -> i32 {
    let failure = match result {
        Ok(()) => return 0,
        Err(failure) => failure,
    };
    match &failure {
        // Whoever reads our output has seen enough: `plimsoll consume | head`.
        Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return 0,
        Failure::Output(error) => complain(verb, format_args!("cannot write to standard output: {error}")),
        Failure::Usage(sentence) | Failure::Client(Error::Request(sentence)) => complain(verb, sentence),
        Failure::Client(error @ Error::Connect { .. }) => complain(
            verb,
            format_args!("{error}; start a broker with `plimsoll serve`, or name another with --address"),
        ),
        Failure::Client(error @ Error::Broker(_)) => complain(verb, error),
        Failure::Start(sentence) => complain(verb, format_args!("cannot start a broker: {sentence}")),
        Failure::Bench(sentence) => complain(verb, sentence),
        Failure::Client(error) => complain(verb, format_args!("outcome unknown: {error}")),
    }
    match failure {
        Failure::Output(_) | Failure::Bench(_) | Failure::Client(Error::Broker(_)) => EXIT_REFUSED,
        Failure::Usage(_) | Failure::Client(Error::Request(_)) => EXIT_USAGE,
        Failure::Start(_) | Failure::Client(Error::Connect { .. }) => EXIT_NO_CONNECTION,
        Failure::Client(_) => EXIT_UNKNOWN,
    }
}

/// Standard output, buffered.
pub(crate) fn output() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// A topic's name, with or without the `@` of the protocol.
pub(crate) fn topic_name(text: &str) -> Result<String, String> {
    match text.strip_prefix('@').unwrap_or(text) {
        "" => Err("a topic needs a name, like orders or @orders".to_owned()),
        name => Ok(name.to_owned()),
    }
}
