//! What a request can be answered instead of what it asked for. No I/O errors here: those halt or become one of these.

use alloc::string::String;
use core::fmt;

/// The code of an `ERR` reply. Stable; clients decide by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Code {
    /// The line can't be understood.
    BadRequest,
    /// A line without an end within the limit.
    LineTooLong,
    /// A payload over the limit.
    TooLarge,
    /// A message without a value.
    Empty,
    /// The topic's queue is full.
    QueueFull,
    /// The disk is full; nothing of the message was stored (P11).
    DiskFull,
    /// An I/O failure; nothing is acknowledged any more (P10).
    Halted,
    /// The topic, or the broker, holds as many bytes as it may.
    OverCapacity,
    /// No topic of this name.
    NoTopic,
    /// No group of this name in the topic.
    NoGroup,
    /// A name that can't be a topic's, a group's or a header's.
    BadName,
    /// Another connection holds the group.
    GroupBusy,
    /// A verb for the other kind of group.
    WrongKind,
    /// An ACK above what this connection was sent.
    NotDelivered,
    /// A CONFIRM, ABORT or EXTEND of something this connection has no lease for.
    NotReserved,
    /// An offset outside the log.
    OutOfRange,
    /// A damaged record was met (P7).
    Corrupt,
    /// No room for another client.
    TooManyConnections,
    /// The broker is stopping.
    Stopping,
}

impl Code {
    /// Every code with its spelling on the wire.
    pub const ALL: [(Code, &'static str); 19] = [
        (Code::BadRequest, "BAD_REQUEST"),
        (Code::LineTooLong, "LINE_TOO_LONG"),
        (Code::TooLarge, "TOO_LARGE"),
        (Code::Empty, "EMPTY"),
        (Code::QueueFull, "QUEUE_FULL"),
        (Code::DiskFull, "DISK_FULL"),
        (Code::Halted, "HALTED"),
        (Code::OverCapacity, "OVER_CAPACITY"),
        (Code::NoTopic, "NO_TOPIC"),
        (Code::NoGroup, "NO_GROUP"),
        (Code::BadName, "BAD_NAME"),
        (Code::GroupBusy, "GROUP_BUSY"),
        (Code::WrongKind, "WRONG_KIND"),
        (Code::NotDelivered, "NOT_DELIVERED"),
        (Code::NotReserved, "NOT_RESERVED"),
        (Code::OutOfRange, "OUT_OF_RANGE"),
        (Code::Corrupt, "CORRUPT"),
        (Code::TooManyConnections, "TOO_MANY_CONNECTIONS"),
        (Code::Stopping, "STOPPING"),
    ];

    /// The spelling on the wire.
    pub fn as_str(self) -> &'static str {
        Code::ALL[self as usize].1
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refused request: the code and a sentence that says what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code} {sentence}")]
pub struct RequestError {
    /// For programs.
    pub code: Code,
    /// For people; one line.
    pub sentence: String,
}

impl RequestError {
    /// Makes one.
    pub fn new(code: Code, sentence: impl Into<String>) -> RequestError {
        RequestError { code, sentence: sentence.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn codes_stand_in_the_table_in_their_own_order() {
        for (index, (code, _)) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize, index);
        }
    }

    #[test]
    fn an_error_is_its_code_and_its_sentence() {
        let error = RequestError::new(Code::OutOfRange, "it goes from 0 to 7");
        assert_eq!(format!("{error}"), "OUT_OF_RANGE it goes from 0 to 7");
    }
}
