//! The process that works on a mounted file system: it carries out steps with the broker's own backend, and reads what there is.

use crate::device::{self, Failure};
use crate::script::Interpreter;
use plimsoll::disk::Disk;
use plimsoll_core::effect::{Effect, EffectId};
use plimsoll_sim::disk::Tree;
use rustix::fs::{Mode, OFlags};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;

/// A child that acts in a directory of a mounted disk. It is killed when this is dropped.
pub struct Actor {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts one.
    ///
    /// # Errors
    /// When that is not possible.
    pub fn start(disk: &device::Disk, directory: &Path) -> Result<Actor, Failure> {
        let failed = |e: std::io::Error| Failure::from(format!("a process that acts: {e}"));
        let own = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(disk.inside()).arg(own).arg("act").arg(directory);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (requests, replies) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(Actor { child, requests, replies: BufReader::new(replies) })
    }

    /// Has a step carried out.
    ///
    /// # Errors
    /// What the file system answered.
    pub fn step(&mut self, step: &str) -> Result<(), Failure> {
        let reply = self.ask(step)?;
        if reply == "ok" { Ok(()) } else { Err(Failure::from(format!("{step}: {reply}"))) }
    }

    /// Everything that is there.
    ///
    /// # Errors
    /// What can't be read.
    pub fn tree(&mut self) -> Result<Tree, Failure> {
        let reply = self.ask("tree")?;
        serde_json::from_str(&reply).map_err(|_| Failure::from(reply))
    }

    fn ask(&mut self, request: &str) -> Result<String, Failure> {
        let mut reply = String::new();
        let asked = writeln!(self.requests, "{request}").and_then(|()| self.replies.read_line(&mut reply));
        match asked {
            Ok(n) if n > 0 => Ok(reply.trim_end().to_owned()),
            _ => Err(Failure::from(format!("{request}: the process that acts is gone"))),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the child does: a line in, a line out.
///
/// # Errors
/// When the directory can't be opened.
pub fn serve(directory: &Path) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::from(format!("{}: {e}", directory.display()));
    let root = rustix::fs::open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = root.map_err(|e| failed(e.into()))?;
    let all = root.try_clone().map_err(failed)?;
    let (wake, wakes) = channel();
    let disk = Disk::new(root, directory.into(), 1, 64, move || {
        let _ = wake.send(());
    });
    let mut disk = disk.map_err(failed)?;
    let mut interpreter = Interpreter::default();
    for (n, request) in std::io::stdin().lines().map_while(Result::ok).enumerate() {
        let id = EffectId(n as u64);
        let reply = if request == "tree" {
            match tree(directory) {
                Ok(tree) => serde_json::to_string(&tree).expect("plain data"),
                Err(error) => error.to_string(),
            }
        } else {
            let done = match interpreter.effect(&request) {
                Ok(None) => rustix::fs::syncfs(&all).map_err(|e| e.to_string()),
                Ok(Some(effect)) => carry_out(&mut disk, id, effect, &wakes),
                Err(error) => Err(error),
            };
            done.map_or_else(|error| error, |()| "ok".to_owned())
        };
        println!("{reply}");
    }
    Ok(())
}

fn carry_out(
    disk: &mut Disk,
    id: EffectId,
    effect: Effect,
    wakes: &std::sync::mpsc::Receiver<()>,
) -> Result<(), String> {
    disk.submit(id, effect);
    loop {
        disk.collect();
        disk.run_deferred();
        if let Some((_, result)) = disk.next_completion() {
            return result.map(|_| ()).map_err(|e| e.to_string());
        }
        if disk.fall_asleep() {
            wakes.recv().expect("the disk's threads live as long as it");
        }
    }
}

fn tree(root: &Path) -> std::io::Result<Tree> {
    let mut tree = Tree::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            let name = path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned();
            if path.is_dir() {
                tree.insert(name, None);
                dirs.push(path);
            } else {
                tree.insert(name, Some(std::fs::read(&path)?));
            }
        }
    }
    Ok(tree)
}
