//! Sockets: what has been received, what is to be sent, who has gone. Knows nothing of what the bytes mean.

use crate::disk::Disk;
use bytes::{Buf, Bytes, BytesMut};
use mio::event::Event;
use mio::net::TcpStream;
use rustix::fd::OwnedFd;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

/// The most that one receive takes.
pub(crate) const RECEIVE_BYTES: usize = 64 << 10;
/// Pieces up to this are put together before they are sent: most replies are a dozen bytes.
const JOIN_BYTES: usize = 512;
/// A joined piece is not made longer than this.
const JOINED_BYTES: usize = 16 << 10;
/// The most that is asked of one sendfile, and the piece that is brought into the page cache first.
const FILE_PIECE_BYTES: u64 = 256 << 10;
/// What one connection may be sent from a file before it is the others' turn.
const FILE_TURN_BYTES: u64 = 1 << 20;
/// Pieces in one system call.
const SLICES: usize = 64;

/// A client.
pub(crate) struct Connection {
    stream: TcpStream,
    out: VecDeque<Out>,
    /// The broker wants its input.
    pub(crate) reading: bool,
    /// There may be input in the kernel.
    pub(crate) readable: bool,
    /// The client has ended its input, or both directions: go on receiving until the end shows.
    ending: bool,
    /// Its end has been received.
    pub(crate) input_ended: bool,
    /// The kernel takes more.
    writable: bool,
    /// A thread brings the next piece of a file into the page cache.
    warming: bool,
    /// It is broken, or to be cut.
    pub(crate) cut: bool,
    /// It is to be closed when everything has been sent.
    pub(crate) close: bool,
    /// It stands in the list of those that have something to send.
    pub(crate) touched: bool,
    /// It stands in the list of those that have something to receive.
    pub(crate) listed: bool,
}

enum Out {
    Bytes(Bytes),
    /// Small pieces put together.
    Joined(BytesMut),
    File {
        fd: Arc<OwnedFd>,
        position: u64,
        length: u64,
        warm: bool,
    },
}

/// What one receive brought.
pub(crate) enum Received {
    Bytes(Bytes),
    Nothing,
    End,
    Broken,
}

/// What a flush left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushed {
    /// Everything is sent.
    Empty,
    /// The kernel, or a thread that reads, has to go on first.
    Waiting,
    /// It is the others' turn.
    More,
    /// Nothing more can be sent.
    Broken,
}

impl Connection {
    /// Takes over an accepted socket. A peer that vanished is noticed after some 15 seconds when there is nothing to
    /// send, and after `send_stall` when there is.
    pub(crate) fn new(stream: TcpStream, send_stall: Duration) -> Connection {
        let _ = stream.set_nodelay(true);
        // A socket without these still works.
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5));
        let _ = sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(3));
        let _ = sockopt::set_tcp_keepcnt(&stream, 3);
        let _ = sockopt::set_tcp_user_timeout(&stream, u32::try_from(send_stall.as_millis()).unwrap_or(u32::MAX));
        Connection {
            stream,
            out: VecDeque::new(),
            reading: true,
            readable: false,
            ending: false,
            input_ended: false,
            writable: true,
            warming: false,
            cut: false,
            close: false,
            touched: false,
            listed: false,
        }
    }

    /// Takes in what the kernel says about the socket.
    pub(crate) fn notice(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed();
        self.writable |= event.is_writable();
        self.ending |= event.is_read_closed();
        // Reset, timed out, or closed in both directions: noticed also while nobody reads.
        self.cut |= event.is_error() || (event.is_read_closed() && event.is_write_closed());
    }

    /// Receives once, by way of `scratch`. The bytes are copied into an allocation of their own size: a message that
    /// comes a byte at a time must not keep whole buffers in memory (P13).
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Received {
        match self.stream.read(scratch) {
            Ok(0) => {
                self.readable = false;
                self.input_ended = true;
                Received::End
            }
            Ok(n) => {
                // Less than asked for: the kernel has no more, and tells when it has (epoll(7)). An end that it has
                // told already it does not tell again.
                self.readable = n == scratch.len() || self.ending;
                Received::Bytes(Bytes::copy_from_slice(&scratch[..n]))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Received::Nothing
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Received::Nothing,
            Err(_) => Received::Broken,
        }
    }

    /// Queues bytes to be sent.
    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        if bytes.len() > JOIN_BYTES {
            self.out.push_back(Out::Bytes(bytes));
            return;
        }
        match self.out.back_mut() {
            Some(Out::Joined(joined)) if joined.len() + bytes.len() <= JOINED_BYTES => joined.extend_from_slice(&bytes),
            _ if bytes.is_empty() => {}
            _ => self.out.push_back(Out::Joined(BytesMut::from(&bytes[..]))),
        }
    }

    /// Queues a range of a file to be sent.
    pub(crate) fn push_file(&mut self, fd: Arc<OwnedFd>, position: u64, length: u64) {
        if length > 0 {
            self.out.push_back(Out::File { fd, position, length, warm: false });
        }
    }

    /// Whether everything has been sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The thread has brought the next piece of the file into the page cache.
    pub(crate) fn warmed(&mut self) {
        self.warming = false;
        if let Some(Out::File { warm, .. }) = self.out.front_mut() {
            *warm = true;
        }
    }

    /// Sends what the kernel takes. Returns how many bytes that was. `token` is what [`Disk::warm`] is to call this
    /// connection.
    pub(crate) fn flush(&mut self, token: u64, disk: &mut Disk) -> (u64, Flushed) {
        let mut sent = 0;
        let mut from_files = 0;
        loop {
            if self.out.is_empty() {
                return (sent, Flushed::Empty);
            }
            if !self.writable || self.warming {
                return (sent, Flushed::Waiting);
            }
            if from_files >= FILE_TURN_BYTES {
                return (sent, Flushed::More);
            }
            let result = match self.out.front() {
                Some(Out::File { .. }) => match self.send_file(token, disk) {
                    Some(result) => result.inspect(|n| from_files += n),
                    None => continue,
                },
                _ => self.send_bytes(),
            };
            match result {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return (sent, Flushed::Broken),
            }
        }
    }

    fn send_bytes(&mut self) -> io::Result<u64> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let (mut used, mut wanted) = (0, 0);
        for (slice, out) in slices.iter_mut().zip(&self.out) {
            *slice = match out {
                Out::Bytes(bytes) => IoSlice::new(bytes),
                Out::Joined(bytes) => IoSlice::new(bytes),
                Out::File { .. } => break,
            };
            used += 1;
            wanted += slice.len();
        }
        let sent = self.stream.write_vectored(&slices[..used])?;
        // The kernel is full, and tells when it is no longer.
        self.writable = sent == wanted;
        let mut rest = sent;
        while rest > 0 {
            let left = match self.out.front_mut() {
                Some(Out::Bytes(bytes)) => advance(bytes, &mut rest),
                Some(Out::Joined(bytes)) => advance(bytes, &mut rest),
                _ => break,
            };
            if left == 0 {
                self.out.pop_front();
            }
        }
        Ok(sent as u64)
    }

    /// Sends a piece of the file that stands first. `None`: it must be read from the device first.
    fn send_file(&mut self, token: u64, disk: &mut Disk) -> Option<io::Result<u64>> {
        let Some(Out::File { fd, position, length, warm }) = self.out.front_mut() else { return None };
        let piece = (*length).min(FILE_PIECE_BYTES);
        if !*warm && !Disk::is_cached(fd, *position, piece) {
            self.warming = true;
            disk.warm(token, fd.clone(), *position, piece as u32);
            return None;
        }
        let mut at = *position;
        let sent = match rustix::fs::sendfile(&self.stream, &*fd, Some(&mut at), piece as usize) {
            // The file is shorter than it was: nothing true can be sent in its place.
            Ok(0) => return Some(Err(ErrorKind::UnexpectedEof.into())),
            Ok(sent) => sent as u64,
            Err(errno) => return Some(Err(errno.into())),
        };
        *position += sent;
        *length -= sent;
        // What is left of a piece that was read is still there.
        *warm &= sent < piece;
        if *length == 0 {
            self.out.pop_front();
        }
        Some(Ok(sent))
    }

    /// Ends the sending direction and hands back the socket, which the client may still be sending to.
    pub(crate) fn end(self) -> TcpStream {
        let _ = self.stream.shutdown(Shutdown::Write);
        self.stream
    }

    /// The socket, to be deregistered.
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

/// Takes `rest` bytes or as many as there are from the front; returns how many are left.
fn advance(bytes: &mut impl Buf, rest: &mut usize) -> usize {
    let n = bytes.remaining().min(*rest);
    bytes.advance(n);
    *rest -= n;
    bytes.remaining()
}

/// Reads and drops input. `true`: there will be no more of it.
pub(crate) fn drain(stream: &mut TcpStream, scratch: &mut [u8]) -> bool {
    // Enough for what was under way; who sends without end is cut by time.
    for _ in 0..16 {
        match stream.read(scratch) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
    false
}
