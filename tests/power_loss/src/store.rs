//! A block device in memory that remembers every write and every flush, in order, and that can be made to fail.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a device writes in one piece, bytes.
pub const SECTOR: usize = 512;
/// What a file system writes in one piece, bytes.
pub const PAGE: usize = 4096;

/// The content of a device. Sparse, and cheap to clone: what two images have in common they share.
#[derive(Clone)]
pub struct Image {
    size: u64,
    /// A page that is not there is all zeros.
    pages: Arc<BTreeMap<u64, Arc<[u8; PAGE]>>>,
    /// Of all sectors that are not zeros, each hashed with its place, combined by exclusive or.
    digest: u128,
}

impl Image {
    /// All zeros. Panics unless the size, bytes, is one of whole pages of 4096.
    pub fn zeros(size: u64) -> Image {
        assert!(size > 0 && size.is_multiple_of(PAGE as u64), "a device of whole pages");
        Image { size, pages: Arc::default(), digest: 0 }
    }

    /// How many bytes the device has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Equal for equal contents.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Fills the buffer with what stands at the position. Behind the end there are zeros.
    pub fn read(&self, position: u64, buffer: &mut [u8]) {
        for (at, part) in page_parts(position, buffer.len()) {
            let inside = ((position + part.start as u64) % PAGE as u64) as usize;
            let target = &mut buffer[part];
            match self.pages.get(&at) {
                Some(page) => target.copy_from_slice(&page[inside..inside + target.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Puts the bytes at the position.
    pub fn write(&mut self, position: u64, bytes: &[u8]) {
        for (at, part) in page_parts(position, bytes.len()) {
            let inside = ((position + part.start as u64) % PAGE as u64) as usize;
            let bytes = &bytes[part];
            if !self.pages.contains_key(&at) && bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            let pages = Arc::make_mut(&mut self.pages);
            let page = Arc::make_mut(pages.entry(at).or_insert_with(|| Arc::new([0; PAGE])));
            let sectors = inside / SECTOR..(inside + bytes.len()).div_ceil(SECTOR);
            let hash = |page: &[u8; PAGE], sector: usize| {
                sector_hash(at * (PAGE / SECTOR) as u64 + sector as u64, &page[sector * SECTOR..][..SECTOR])
            };
            sectors.clone().for_each(|sector| self.digest ^= hash(page, sector));
            page[inside..inside + bytes.len()].copy_from_slice(bytes);
            sectors.for_each(|sector| self.digest ^= hash(page, sector));
        }
    }

    /// Keeps the image as a sparse file.
    ///
    /// # Errors
    /// Of the file.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size)?;
        self.pages.iter().try_for_each(|(at, page)| file.write_all_at(&page[..], at * PAGE as u64))
    }

    /// An image that was [saved](Image::save).
    ///
    /// # Errors
    /// Of the file.
    pub fn load(path: &Path) -> io::Result<Image> {
        let mut file = File::open(path)?;
        let mut image = Image::zeros(file.metadata()?.len());
        let mut buffer = vec![0; 1 << 20];
        let mut position = 0;
        while position < image.size {
            let part = buffer.len().min((image.size - position) as usize);
            file.read_exact(&mut buffer[..part])?;
            image.write(position, &buffer[..part]);
            position += part as u64;
        }
        Ok(image)
    }
}

/// The pages that a range touches, each with the part of the range that lies in it.
fn page_parts(position: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let end = position + length as u64;
    let pages = position / PAGE as u64..end.div_ceil(PAGE as u64);
    pages.filter(move |_| length > 0).map(move |at| {
        let from = (at * PAGE as u64).max(position);
        let to = ((at + 1) * PAGE as u64).min(end);
        (at, (from - position) as usize..(to - position) as usize)
    })
}

fn sector_hash(index: u64, sector: &[u8]) -> u128 {
    if sector.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let mut hasher = SipHasher13::new();
    hasher.write_u64(index);
    hasher.write(sector);
    hasher.finish128().as_u128()
}

/// One write that the device was given.
#[derive(Clone)]
pub struct Write {
    /// Where, bytes.
    pub position: u64,
    /// What.
    pub bytes: Arc<[u8]>,
}

/// What happened to the device, one after the other. Writes are named by their place in [`Log::writes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The device was given a write.
    Given(usize),
    /// It answered that the write is done: in its cache, that is.
    Done(usize),
    /// It answered a flush. That covers the writes that were done when the flush was given, and no others
    /// (Linux, Documentation/block/writeback_cache_control.rst).
    Flushed,
}

/// All that happened to a device since it had a certain content.
#[derive(Clone)]
pub struct Log {
    /// The content before, all of it durable.
    pub base: Image,
    /// The writes in the order in which they were given.
    pub writes: Vec<Write>,
    /// What happened. A **position** in the log is a number of these.
    pub events: Vec<Event>,
    /// See [`BlockStore::keep_whole`].
    pub whole: Whole,
}

/// Whether a block of 4096 bytes that is written at a position, and begins with these bytes, reaches the platter as a whole or
/// not at all.
pub type Whole = fn(position: u64, bytes: &[u8]) -> bool;

/// What a device does. See [`BlockStore::fail`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// It is asked for bytes.
    Read,
    /// It is given bytes.
    Write,
    /// It is to make durable what it has.
    Flush,
}

/// Which requests fail, with an I/O error and without effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failing {
    /// What kind.
    pub kind: Kind,
    /// So many of the kind succeed before.
    pub after: u64,
    /// So many fail then.
    pub times: u64,
    /// Only requests that touch these bytes of the device count. A flush touches all of it.
    pub within: Range<u64>,
}

impl Failing {
    /// Every request of the kind from now on.
    pub fn every(kind: Kind) -> Failing {
        Failing { kind, after: 0, times: u64::MAX, within: 0..u64::MAX }
    }
}

/// The device. A clone is the same device. [`BlockStore::mount`] gives it to the kernel.
#[derive(Clone)]
pub struct BlockStore {
    state: Arc<Mutex<State>>,
}

struct State {
    image: Image,
    log: Log,
    failing: Vec<Failing>,
    failed: u64,
    /// Writes are answered later and in another order, and flushes overtake them.
    overtaking: bool,
}

impl BlockStore {
    /// A device of so many bytes, all zeros. Panics unless these are whole pages of 4096.
    pub fn new(size: u64) -> BlockStore {
        BlockStore::of(Image::zeros(size))
    }

    /// A device with this content, all of it durable.
    pub fn of(image: Image) -> BlockStore {
        let log = Log { base: image.clone(), writes: Vec::new(), events: Vec::new(), whole: |_, _| false };
        let state = State { image, log, failing: Vec::new(), failed: 0, overtaking: false };
        BlockStore { state: Arc::new(Mutex::new(state)) }
    }

    /// Gives the device another content of the same size, all of it durable, and begins a new log. Nothing may be mounted on
    /// it. Panics for another size.
    pub fn replace(&self, image: Image) {
        let mut state = self.state();
        assert_eq!(state.image.size, image.size, "a device does not change its size");
        state.log.base = image.clone();
        state.log.writes.clear();
        state.log.events.clear();
        state.image = image;
    }

    /// The content with everything that was written, as a reader sees it.
    pub fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// What happened since the content was last [replaced](BlockStore::replace).
    pub fn log(&self) -> Log {
        self.state().log.clone()
    }

    /// How long the log is: the number of its events.
    pub fn position(&self) -> usize {
        self.state().log.events.len()
    }

    /// How many flushes it holds.
    pub fn flushes(&self) -> usize {
        self.state().log.events.iter().filter(|event| **event == Event::Flushed).count()
    }

    /// Whether writes are answered a little later and in an order of chance, so that flushes overtake some. Such a write is not
    /// covered by the flush. Off at first.
    pub fn set_overtaking(&self, on: bool) {
        self.state().overtaking = on;
    }

    /// Says which blocks are never torn: what a file system demands of its device beyond whole sectors. None at first.
    pub fn keep_whole(&self, whole: Whole) {
        self.state().log.whole = whole;
    }

    /// Makes requests fail from now on, beside those that already do.
    pub fn fail(&self, failing: Failing) {
        self.state().failing.push(failing);
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        self.state().failing.clear();
    }

    /// How many requests have failed.
    pub fn failed(&self) -> u64 {
        self.state().failed
    }

    pub(crate) fn size(&self) -> u64 {
        self.state().image.size
    }

    pub(crate) fn is_overtaking(&self) -> bool {
        self.state().overtaking
    }

    pub(crate) fn read(&self, position: u64, buffer: &mut [u8]) -> Result<(), Failed> {
        let mut state = self.state();
        state.attempt(Kind::Read, position..position + buffer.len() as u64)?;
        state.image.read(position, buffer);
        Ok(())
    }

    /// Takes a write and answers which one it is. It is not done before [`BlockStore::done`].
    pub(crate) fn given(&self, position: u64, bytes: &[u8]) -> Result<usize, Failed> {
        let mut state = self.state();
        state.attempt(Kind::Write, position..position + bytes.len() as u64)?;
        state.image.write(position, bytes);
        let write = state.log.writes.len();
        state.log.writes.push(Write { position, bytes: bytes.into() });
        state.log.events.push(Event::Given(write));
        Ok(write)
    }

    pub(crate) fn done(&self, write: usize) {
        self.state().log.events.push(Event::Done(write));
    }

    pub(crate) fn flush(&self) -> Result<(), Failed> {
        let mut state = self.state();
        state.attempt(Kind::Flush, 0..u64::MAX)?;
        state.log.events.push(Event::Flushed);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }
}

/// A request that is to fail.
pub(crate) struct Failed;

impl State {
    fn attempt(&mut self, kind: Kind, range: Range<u64>) -> Result<(), Failed> {
        let touches = |within: &Range<u64>| within.start < range.end && range.start < within.end;
        let mut fails = false;
        for failing in self.failing.iter_mut().filter(|failing| failing.kind == kind && touches(&failing.within)) {
            if failing.after > 0 {
                failing.after -= 1;
            } else if failing.times > 0 {
                failing.times -= 1;
                fails = true;
            }
        }
        self.failed += u64::from(fails);
        if fails { Err(Failed) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_reads_as_it_was_written_and_equal_images_have_equal_digests() {
        let mut image = Image::zeros(1 << 16);
        let bytes: Vec<u8> = (0..6000).map(|i| i as u8 | 1).collect();
        image.write(1000, &bytes);
        let mut found = vec![9; 6002];
        image.read(999, &mut found);
        assert_eq!((found[0], found[6001]), (0, 0));
        assert_eq!(found[1..6001], bytes);
        let before = image.clone();
        image.write(4096, &[7; 512]);
        assert_ne!(image.digest(), before.digest());
        image.write(4096, &bytes[3096..3608]);
        assert_eq!(image.digest(), before.digest());
        image.write(0, &[0; 8192]);
        assert_eq!(image.digest(), Image::zeros(1 << 16).digest());
    }

    #[test]
    fn a_saved_image_comes_back() {
        let mut image = Image::zeros(3 << 20);
        image.write(2_000_000, b"here");
        let scratch = tempfile::tempdir().unwrap();
        image.save(&scratch.path().join("image")).unwrap();
        assert_eq!(Image::load(&scratch.path().join("image")).unwrap().digest(), image.digest());
    }

    #[test]
    fn requests_fail_as_they_are_told_to() {
        let store = BlockStore::new(1 << 16);
        store.fail(Failing { kind: Kind::Write, after: 1, times: 2, within: 4096..8192 });
        let written = |position| store.given(position, &[1; 512]).is_ok();
        assert_eq!([0, 4096, 0, 4096, 7680, 8192, 4096].map(written), [true, true, true, false, false, true, true]);
        assert_eq!((store.failed(), store.position()), (2, 5));
        store.fail(Failing::every(Kind::Flush));
        assert!(store.flush().is_err() && store.read(0, &mut [0; 512]).is_ok());
        store.heal();
        assert!(store.flush().is_ok());
    }
}
