//! The client's half of the line protocol: bytes to replies. It shares no code with the broker's half.

use crate::model::{Broken, broken};

/// A delivered message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its offset.
    pub offset: u64,
    /// Its value.
    pub value: Vec<u8>,
    /// With META, the words behind its length.
    pub meta: Option<Vec<String>>,
}

/// Messages in the order in which they came, and what was said to be gone between them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Delivery {
    /// The messages.
    pub messages: Vec<Message>,
    /// `GAP <first> <next>`, each with how many messages came before it.
    pub gaps: Vec<(usize, u64, u64)>,
}

impl Delivery {
    /// The offset that it begins with: of a message, or of a gap.
    pub fn first(&self) -> Option<u64> {
        match self.gaps.first() {
            Some((0, first, _)) => Some(*first),
            _ => self.messages.first().map(|message| message.offset),
        }
    }

    /// The offset behind all that it tells of.
    pub fn next(&self) -> Option<u64> {
        match self.gaps.last() {
            Some((before, _, next)) if *before == self.messages.len() => Some(*next),
            _ => self.messages.last().map(|message| message.offset + 1),
        }
    }

    /// Everything that it tells of, in order: first offset, next offset, and whether that is gone.
    pub fn parts(&self) -> Vec<(u64, u64, bool)> {
        let mut parts = Vec::new();
        for at in 0..=self.messages.len() {
            parts.extend(self.gaps.iter().filter(|gap| gap.0 == at).map(|(_, first, next)| (*first, *next, true)));
            parts.extend(self.messages.get(at).map(|message| (message.offset, message.offset + 1, false)));
        }
        parts
    }
}

/// One whole reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// `OK <offset> <level>`, for a batch `OK <first offset> <level> <count>`.
    Published {
        /// The offset.
        offset: u64,
        /// The level that it says was reached.
        level: String,
        /// How many messages it says the batch has.
        count: Option<u64>,
    },
    /// `ERR <code> …`.
    Error(String),
    /// `MSG …`, `MSGN …`, `MSGX …`, `GAP …`, and `END`.
    Messages(Delivery),
    /// `ACKED`.
    Acked(u64),
    /// `SOUGHT`.
    Sought(u64),
    /// `PURGED`.
    Purged(u64),
    /// `FRAMES` and the bytes.
    Frames {
        /// The offset of the first frame.
        first: u64,
        /// What the checksums start from.
        salt: u32,
        /// The frames.
        bytes: Vec<u8>,
    },
    /// Any other: its lines (without `END`).
    Lines(Vec<String>),
}

/// What shape the reply to a request has, when it is no error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One line.
    Line,
    /// Lines and `END`.
    List,
    /// Messages and `END`.
    Messages,
    /// A line and bytes.
    Frames,
}

/// Takes one reply from the beginning of `bytes`, with how long it is. `None`: it has not all come yet.
///
/// # Errors
/// What stands there is no such reply (P14).
pub fn take(shape: Shape, bytes: &[u8]) -> Result<Option<(Seen, usize)>, Broken> {
    let mut reader = Reader { bytes, at: 0 };
    let Some(first) = reader.line()? else { return Ok(None) };
    if let Some(error) = first.strip_prefix("ERR ") {
        let code = error.split(' ').next().unwrap_or("");
        return Ok(Some((Seen::Error(code.to_owned()), reader.at)));
    }
    let seen = match shape {
        Shape::Line => {
            let words: Vec<&str> = first.split(' ').collect();
            match words[..] {
                ["OK", offset, level] => {
                    Seen::Published { offset: number(offset)?, level: level.to_owned(), count: None }
                }
                ["OK", offset, level, count] => {
                    Seen::Published { offset: number(offset)?, level: level.to_owned(), count: Some(number(count)?) }
                }
                ["ACKED", offset] => Seen::Acked(number(offset)?),
                ["PURGED", start] => Seen::Purged(number(start)?),
                ["SOUGHT", offset] => Seen::Sought(number(offset)?),
                _ => Seen::Lines(vec![first]),
            }
        }
        Shape::Frames => {
            let words: Vec<&str> = first.split(' ').collect();
            let ["FRAMES", offset, length, salt] = words[..] else { return nonsense(&first) };
            let (first, length, salt) = (number(offset)?, number(length)? as usize, number(salt)? as u32);
            let Some(frames) = reader.bytes(length) else { return Ok(None) };
            Seen::Frames { first, salt, bytes: frames.to_vec() }
        }
        Shape::List => {
            let mut lines = Vec::new();
            let mut line = first;
            while !line.starts_with("END ") {
                lines.push(line);
                match reader.line()? {
                    Some(next) => line = next,
                    None => return Ok(None),
                }
            }
            count(&line, lines.len())?;
            Seen::Lines(lines)
        }
        Shape::Messages => {
            let Delivery { mut messages, mut gaps } = Delivery::default();
            reader.at = 0;
            loop {
                let Some(head) = reader.until(b" \n") else { return Ok(None) };
                match head {
                    b"MSG" => {
                        let Some(offset) = reader.until(b" ") else { return Ok(None) };
                        let offset = number(&text(offset)?)?;
                        let Some(value) = reader.until(b"\n") else { return Ok(None) };
                        messages.push(Message { offset, value: value.to_vec(), meta: None });
                    }
                    b"MSGN" | b"MSGX" => {
                        let with_meta = head == b"MSGX";
                        let Some(line) = reader.line()? else { return Ok(None) };
                        let mut words = line.split(' ');
                        let (offset, length) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
                        let (offset, length) = (number(offset)?, number(length)? as usize);
                        let meta = with_meta.then(|| words.map(str::to_owned).collect());
                        let Some(value) = reader.bytes(length) else { return Ok(None) };
                        let value = value.to_vec();
                        let Some(newline) = reader.bytes(1) else { return Ok(None) };
                        if newline != b"\n" {
                            return nonsense("a message without its newline");
                        }
                        messages.push(Message { offset, value, meta });
                    }
                    b"END" => {
                        let Some(line) = reader.line()? else { return Ok(None) };
                        count(&format!("END {line}"), messages.len())?;
                        break;
                    }
                    b"GAP" => {
                        let Some(line) = reader.line()? else { return Ok(None) };
                        let Some((first, next)) = line.split_once(' ') else { return nonsense(&line) };
                        gaps.push((messages.len(), number(first)?, number(next)?));
                    }
                    _ => return nonsense(&first),
                }
            }
            Seen::Messages(Delivery { messages, gaps })
        }
    };
    Ok(Some((seen, reader.at)))
}

fn count(line: &str, found: usize) -> Result<(), Broken> {
    match line.strip_prefix("END ").map(number) {
        Some(Ok(said)) if said as usize == found => Ok(()),
        _ => nonsense(&format!("{line:?} after {found} of them")),
    }
}

fn number(word: &str) -> Result<u64, Broken> {
    word.parse().or_else(|_| nonsense(&format!("{word:?} where a number should stand")))
}

fn text(bytes: &[u8]) -> Result<String, Broken> {
    String::from_utf8(bytes.to_vec()).or_else(|_| nonsense("a line that is no text"))
}

fn nonsense<T>(what: &str) -> Result<T, Broken> {
    broken("P14", format!("a reply can't be read: {what}"))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn until(&mut self, ends: &[u8]) -> Option<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| ends.contains(byte))?;
        self.at += length + 1;
        Some(&rest[..length])
    }

    fn line(&mut self) -> Result<Option<String>, Broken> {
        let at = self.at;
        match self.until(b"\n") {
            // The value of a MSG may be any bytes.
            Some(line) if line.starts_with(b"MSG ") => {
                self.at = at + line.len() + 1;
                Ok(Some(String::from_utf8_lossy(line).into_owned()))
            }
            Some(line) => text(line).map(Some),
            None => Ok(None),
        }
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + length)?;
        self.at += length;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_come_whole_or_not_at_all() {
        let bytes = b"MSG 0 a\xffb\nMSGN 1 3\nx\ny\nGAP 2 5\nMSGX 5 1 time=5 key=k\nz\nEND 3\nPONG\n";
        let (seen, length) = take(Shape::Messages, bytes).expect("a reply").expect("whole");
        let Seen::Messages(delivery) = seen else { panic!("messages") };
        assert_eq!(delivery.parts(), [(0, 1, false), (1, 2, false), (2, 5, true), (5, 6, false)]);
        assert_eq!((delivery.first(), delivery.next()), (Some(0), Some(6)));
        let messages = delivery.messages;
        assert_eq!(messages.iter().map(|m| &m.value[..]).collect::<Vec<_>>(), [&b"a\xffb"[..], b"x\ny", b"z"]);
        assert_eq!(messages[2].meta.as_deref(), Some(&["time=5".to_owned(), "key=k".to_owned()][..]));
        assert_eq!(&bytes[length..], b"PONG\n");
        for cut in 0..length {
            assert_eq!(take(Shape::Messages, &bytes[..cut]), Ok(None), "cut at {cut}");
        }
        assert!(take(Shape::Messages, b"MSG 0 a\nEND 2\n").is_err());
        assert_eq!(
            take(Shape::Frames, b"FRAMES 3 2 9\nab"),
            Ok(Some((Seen::Frames { first: 3, salt: 9, bytes: b"ab".to_vec() }, 15)))
        );
        assert_eq!(take(Shape::Line, b"ERR EMPTY no\n"), Ok(Some((Seen::Error("EMPTY".into()), 13))));
    }
}
