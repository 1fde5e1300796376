//! The disk threads: a queue of jobs, and what they brought back.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Which jobs go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Forces, writes and names: somebody waits for an acknowledgement.
    Commit,
    /// Reads that have to wait for the device. They never occupy all threads, or a reader of old messages on a slow
    /// disk would stop every producer.
    Read,
}

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// A few threads that run jobs and hand back a `T` each.
pub(super) struct Pool<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    todo: Mutex<Todo<T>>,
    more: Condvar,
    done: Mutex<Done<T>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Todo<T> {
    commits: VecDeque<Job<T>>,
    reads: VecDeque<Job<T>>,
    reading: usize,
    reading_max: usize,
    idle: usize,
    end: bool,
}

struct Done<T> {
    finished: Vec<T>,
    /// The owner is about to sleep and must be woken. Kept under the lock, so that no wake is lost, and none is paid
    /// for while the owner is awake anyway.
    asleep: bool,
}

impl<T: Send + 'static> Pool<T> {
    /// Starts the threads. `wake` rouses the owner from the sleep that [`Pool::fall_asleep`] announced.
    pub(super) fn start(threads: usize, wake: impl Fn() + Send + Sync + 'static) -> std::io::Result<Pool<T>> {
        let shared = Arc::new(Shared {
            todo: Mutex::new(Todo {
                commits: VecDeque::new(),
                reads: VecDeque::new(),
                reading: 0,
                reading_max: (threads / 2).max(1),
                idle: 0,
                end: false,
            }),
            more: Condvar::new(),
            done: Mutex::new(Done { finished: Vec::new(), asleep: false }),
            wake: Box::new(wake),
        });
        let pool = Pool { shared };
        for index in 0..threads.max(1) {
            let shared = pool.shared.clone();
            thread::Builder::new().name(format!("disk-{index}")).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Queues a job.
    pub(super) fn run(&self, class: Class, job: impl FnOnce() -> T + Send + 'static) {
        let mut todo = lock(&self.shared.todo);
        match class {
            Class::Commit => todo.commits.push_back(Box::new(job)),
            Class::Read => todo.reads.push_back(Box::new(job)),
        }
        let somebody_sleeps = todo.idle > 0;
        drop(todo);
        if somebody_sleeps {
            self.shared.more.notify_one();
        }
    }

    /// Moves what has been finished to the end of `into`.
    pub(super) fn collect(&self, into: &mut VecDeque<T>) {
        let mut done = lock(&self.shared.done);
        done.asleep = false;
        into.extend(done.finished.drain(..));
    }

    /// Announces that the owner will sleep until it is woken. `false`: there is something to collect first.
    pub(super) fn fall_asleep(&self) -> bool {
        let mut done = lock(&self.shared.done);
        done.asleep = done.finished.is_empty();
        done.asleep
    }
}

impl<T> Drop for Pool<T> {
    /// Lets the threads end by themselves: one may hang in a force that never returns.
    fn drop(&mut self) {
        lock(&self.shared.todo).end = true;
        self.shared.more.notify_all();
    }
}

impl<T> Shared<T> {
    fn work(&self) {
        while let Some((job, class)) = self.next_job() {
            let result = job();
            if class == Class::Read {
                let mut todo = lock(&self.todo);
                todo.reading -= 1;
                let more_reads = !todo.reads.is_empty();
                drop(todo);
                if more_reads {
                    // One that was held back may go now; this thread may take it itself.
                    self.more.notify_one();
                }
            }
            let mut done = lock(&self.done);
            done.finished.push(result);
            let wake = std::mem::take(&mut done.asleep);
            drop(done);
            if wake {
                (self.wake)();
            }
        }
    }

    fn next_job(&self) -> Option<(Job<T>, Class)> {
        let mut todo = lock(&self.todo);
        loop {
            if todo.end {
                return None;
            }
            if let Some(job) = todo.commits.pop_front() {
                return Some((job, Class::Commit));
            }
            if todo.reading < todo.reading_max
                && let Some(job) = todo.reads.pop_front()
            {
                todo.reading += 1;
                return Some((job, Class::Read));
            }
            todo.idle += 1;
            todo = self.more.wait(todo).unwrap_or_else(PoisonError::into_inner);
            todo.idle -= 1;
        }
    }
}

/// A panic in a job is a bug that must not become a second one here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
