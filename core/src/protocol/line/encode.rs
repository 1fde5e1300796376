//! Replies to bytes. Messages are the hot path: numbers are formatted on the stack, everything is appended to one buffer.

use crate::message::Message;
use crate::protocol::{PendingState, Reply, percent};
use alloc::vec::Vec;

/// Appends a reply, all its lines with their newlines.
pub fn encode_reply(out: &mut Vec<u8>, reply: &Reply) {
    match reply {
        Reply::Published { offset, level, batch } => {
            number(out, "OK ", *offset);
            text(out, " ", level.as_str());
            if let Some(count) = batch {
                number(out, " ", *count);
            }
        }
        Reply::Error(error) => {
            text(out, "ERR ", error.code.as_str());
            out.push(b' ');
            // A sentence may quote what the broker did not write, a file's name say: it stays one line all the same.
            out.extend(error.sentence.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        }
        Reply::Acked { committed } => number(out, "ACKED ", *committed),
        Reply::Found { offset } => number(out, "FOUND ", *offset),
        Reply::Sought { offset } => number(out, "SOUGHT ", *offset),
        Reply::Frames { first, bytes, salt } => {
            number(out, "FRAMES ", *first);
            number(out, " ", *bytes);
            number(out, " ", *salt);
        }
        Reply::Status(status) => {
            text(out, "STATUS topic=", &status.topic);
            number(out, " start=", status.start);
            number(out, " durable=", status.durable);
            number(out, " written=", status.written);
            number(out, " next=", status.next);
            number(out, " segments=", status.segments);
            number(out, " bytes=", status.bytes);
            number(out, " groups=", status.groups);
            number(out, " forces=", status.forces);
            number(out, " forceMeanUs=", status.force_mean_us);
            number(out, " forceTotalMs=", status.force_total_ms);
            number(out, " unforcedMax=", status.unforced_max);
            number(out, " unforcedMaxMs=", status.unforced_ms_max);
            number(out, " packed=", status.packed);
            number(out, " packedBytes=", status.packed_bytes);
            number(out, " packFailures=", status.pack_failures);
        }
        Reply::Topics(topics) => {
            for topic in topics {
                text(out, "TOPIC name=", &topic.topic);
                number(out, " start=", topic.start);
                number(out, " durable=", topic.durable);
                number(out, " next=", topic.next);
                number(out, " bytes=", topic.bytes);
                out.push(b'\n');
            }
            return encode_end(out, topics.len() as u64);
        }
        Reply::Groups(groups) => {
            for group in groups {
                text(out, "GROUP name=", &group.group);
                number(out, " committed=", group.committed);
                number(out, " lag=", group.lag);
                text(out, " held=", if group.held { "yes" } else { "no" });
                out.push(b'\n');
            }
            return encode_end(out, groups.len() as u64);
        }
        Reply::Confirmed { count } => number(out, "CONFIRMED ", *count),
        Reply::Aborted { offset } => number(out, "ABORTED ", *offset),
        Reply::Extended { offset } => number(out, "EXTENDED ", *offset),
        Reply::Stolen { offset } => number(out, "STOLEN ", *offset),
        Reply::Queues(queues) => {
            for queue in queues {
                text(out, "QUEUE name=", &queue.group);
                number(out, " confirmed=", queue.confirmed);
                number(out, " next=", queue.next);
                number(out, " ready=", queue.ready);
                number(out, " reserved=", queue.reserved);
                number(out, " delayed=", queue.delayed);
                number(out, " dying=", queue.dying);
                number(out, " waiting=", queue.waiting);
                number(out, " journalBytes=", queue.journal_bytes);
                number(out, " journalForces=", queue.journal_forces);
                out.push(b'\n');
            }
            return encode_end(out, queues.len() as u64);
        }
        Reply::Pending(messages) => {
            for message in messages {
                number(out, "PENDING ", message.offset);
                number(out, " deliveries=", message.deliveries);
                match &message.state {
                    PendingState::Reserved { connection, peer, left_ms } => {
                        number(out, " state=reserved connection=", *connection);
                        text(out, " peer=", peer);
                        number(out, " leftMs=", *left_ms);
                    }
                    PendingState::Ready { due_ms: 0 } => text(out, " state=", "ready"),
                    PendingState::Ready { due_ms } => number(out, " state=delayed dueMs=", *due_ms),
                    PendingState::Dying => text(out, " state=", "dying"),
                }
                out.push(b'\n');
            }
            return encode_end(out, messages.len() as u64);
        }
        Reply::Created { topic } => text(out, "CREATED ", topic),
        Reply::Purged { start } => number(out, "PURGED ", *start),
        Reply::Deleted { topic, group } => {
            text(out, "DELETED ", topic);
            if let Some(group) = group {
                text(out, " ", group);
            }
        }
        Reply::Altered { topic } => text(out, "ALTERED ", topic),
        Reply::Settings(settings) => {
            for (row, value, origin) in settings {
                text(out, "SETTING ", row.name);
                text(out, " ", &row.show(*value));
                text(out, " ", origin.as_str());
                out.push(b'\n');
            }
            return encode_end(out, settings.len() as u64);
        }
        Reply::Pong => text(out, "PONG", ""),
        Reply::Hello(hello) => {
            text(out, "HELLO version=", hello.version);
            number(out, " maxPayload=", hello.payload_bytes_max);
            number(out, " maxPublishBatch=", hello.publish_batch_bytes_max);
            number(out, " maxPublishBatchMessages=", hello.queue_messages);
            number(out, " maxUnanswered=", hello.unanswered_max);
            number(out, " maxFetchWaitMs=", hello.fetch_wait_ms_max);
            number(out, " maxFetchBytes=", hello.fetch_bytes_max);
        }
        Reply::Bye => text(out, "BYE", ""),
    }
    out.push(b'\n');
}

/// Appends a delivered message: `MSG`, or `MSGN` where a line can't hold the payload, or with `meta` always `MSGX`, in a work queue
/// with how often it has been reserved.
pub fn encode_message(out: &mut Vec<u8>, offset: u64, message: &Message<'_>, meta: bool, deliveries: Option<u32>) {
    let value = message.value;
    // Two numbers of 20 digits and the words around them fit in beside the payload: one growth a message at most.
    out.reserve(value.len() + 64);
    if meta {
        number(out, "MSGX ", offset);
        number(out, " ", value.len() as u64);
        number(out, " time=", message.timestamp_ms);
        if let Some((producer, sequence)) = message.producer {
            number(out, " id=", producer);
            number(out, ":", u64::from(sequence));
        }
        if let Some(key) = message.key {
            text(out, " key=", "");
            percent::encode(out, key);
        }
        for (name, value) in message.headers() {
            text(out, " h.", "");
            percent::encode(out, name);
            out.push(b'=');
            percent::encode(out, value);
        }
        if let Some(deliveries) = deliveries {
            number(out, " deliveries=", deliveries);
        }
        out.push(b'\n');
    } else if value.ends_with(b"\r") || memchr::memchr(b'\n', value).is_some() {
        number(out, "MSGN ", offset);
        number(out, " ", value.len() as u64);
        out.push(b'\n');
    } else {
        number(out, "MSG ", offset);
        out.push(b' ');
    }
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Appends `GAP`: the offsets from `first` up to but not including `next` are gone.
pub fn encode_gap(out: &mut Vec<u8>, first: u64, next: u64) {
    number(out, "GAP ", first);
    number(out, " ", next);
    out.push(b'\n');
}

/// Appends `END`: so many messages (or lines of a list) came before it.
pub fn encode_end(out: &mut Vec<u8>, count: u64) {
    number(out, "END ", count);
    out.push(b'\n');
}

fn number(out: &mut Vec<u8>, before: &str, value: impl itoa::Integer) {
    text(out, before, itoa::Buffer::new().format(value));
}

fn text(out: &mut Vec<u8>, before: &str, text: &str) {
    out.extend_from_slice(before.as_bytes());
    out.extend_from_slice(text.as_bytes());
}
