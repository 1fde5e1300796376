//! A PostgreSQL cluster for a test, and sessions of `psql` with it.

use crate::broker::PATIENCE;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server with a cluster of its own, reached through a socket in its directory and no port. It is ended, and its
/// files removed, when this is dropped; the kernel ends it with the thread that started it.
pub struct Cluster {
    server: Child,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Makes a cluster and starts a server on it, whose log goes to this file.
    ///
    /// Panics where PostgreSQL is not installed: a test that can't do what it says must not pass.
    pub fn start(log: &Path) -> Cluster {
        let programs = programs();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let user = user();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).expect("root may give a directory away");
        }
        let data = dir.path().join("data");
        let made = as_user(user, &programs.join("initdb"))
            .args(["--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"])
            .arg("--pgdata")
            .arg(&data)
            .output()
            .expect("setpriv(1) is installed");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let log = std::fs::File::create(log).expect("a log file");
        let mut server = as_user(user, &programs.join("postgres"));
        let server = server
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(dir.path())
            .args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("one file"))
            .stderr(log)
            .spawn()
            .expect("setpriv(1) is installed");
        let mut cluster = Cluster { server, dir };
        cluster.wait_until_ready();
        cluster
    }

    /// Where its socket is: what `psql --host` takes.
    pub fn socket(&self) -> &Path {
        self.dir.path()
    }

    /// A session.
    pub fn session(&self) -> Session {
        Session::open(self.socket())
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ready = psql(self.socket()).args(["-c", "select 1"]).output().expect("psql is installed (tests/setup)");
            if ready.status.success() {
                return;
            }
            let ended = self.server.try_wait().expect("the child is ours");
            let said = String::from_utf8_lossy(&ready.stderr);
            assert!(ended.is_none() && Instant::now() < deadline, "PostgreSQL does not start: {ended:?}, {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its processes end by themselves when the first of them is gone, and there is nothing to keep.
        let _ = self.server.kill();
        let _ = self.server.wait();
        // They may still be closing files.
        let deadline = Instant::now() + PATIENCE;
        while std::fs::remove_dir_all(self.dir.path()).is_err() && self.dir.path().exists() && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A `psql` that is told statements, one after the other, in one connection.
pub struct Session {
    psql: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    asked: u64,
}

impl Session {
    /// Connects to the server whose socket is here.
    pub fn open(socket: &Path) -> Session {
        let mut psql = psql(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("psql is installed (tests/setup)");
        let stdin = psql.stdin.take().expect("piped");
        let stdout = BufReader::new(psql.stdout.take().expect("piped"));
        Session { psql, stdin, stdout, asked: 0 }
    }

    /// Runs statements and answers their rows, one a line, columns separated by `|`.
    ///
    /// Panics where the server refuses one; `psql` has said why.
    pub fn run(&mut self, sql: &str) -> Vec<String> {
        self.asked += 1;
        let end = format!("\u{1}{}", self.asked);
        writeln!(self.stdin, "{sql};\n\\echo {end}").expect("psql takes statements");
        let mut rows = Vec::new();
        loop {
            let mut row = String::new();
            let n = self.stdout.read_line(&mut row).expect("text");
            assert!(n > 0, "PostgreSQL refused {sql:?}");
            let row = row.trim_end_matches('\n');
            if row == end {
                return rows;
            }
            rows.push(row.to_owned());
        }
    }

    /// The one number that a statement answers.
    ///
    /// Panics where it answers anything else.
    pub fn number(&mut self, sql: &str) -> u64 {
        let rows = self.run(sql);
        let number = rows.first().and_then(|row| row.parse().ok());
        number.filter(|_| rows.len() == 1).unwrap_or_else(|| panic!("{sql}: {rows:?}"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

/// A text as SQL.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn psql(socket: &Path) -> Command {
    let mut command = Command::new("psql");
    // No settings of whoever runs this: no start-up file, no variables of the environment.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PG")) {
        command.env_remove(name);
    }
    command
        .args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1"])
        .args(["--username", "postgres", "--dbname", "postgres", "--host"])
        .arg(socket);
    command
}

/// Where `initdb` and `postgres` are: the newest version that is installed.
fn programs() -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = installed
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists())
        .collect();
    versions.sort();
    if let Some((_, bin)) = versions.pop() {
        return bin;
    }
    let path = std::env::var_os("PATH").expect("there is a PATH");
    let found = std::env::split_paths(&path).find(|dir| dir.join("initdb").exists());
    found.expect("PostgreSQL's initdb is not installed: run tests/setup")
}

/// Who is to run the server: it refuses to be root.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |flag: &str, name: &str| -> Option<u32> {
        let output = Command::new("id").args([flag, name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let found = ["postgres", "nobody"].iter().find_map(|name| Some((id("-u", name)?, id("-g", name)?)));
    Some(found.expect("there is a user nobody"))
}

/// A command of this user, ended by the kernel with the thread that starts it.
fn as_user(user: Option<(u32, u32)>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some((uid, gid)) = user {
        command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"]);
    }
    command.arg(program).current_dir("/");
    command
}
