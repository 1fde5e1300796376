//! Consumers with side effects in PostgreSQL: P6 says at least once, and these show what makes it exactly once for them.

use crate::rig::{Run, events};
use plimsoll_tests::broker::Broker;
use plimsoll_tests::postgres::{Cluster, Session};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const MESSAGES: usize = 60;

pub(crate) fn dedup_by_offset(run: &Run) -> String {
    let application = Application::new(run, "message_offset bigint primary key");
    let first = application.crashes("by-offset");
    let second = application.finishes("by-offset");
    assert_eq!(second, "firstOffset=20 lastOffset=59 seen=40 applied=35 skippedDuplicates=5");
    format!("first run: {first}; second: {second}; {}", application.rows())
}

pub(crate) fn without_key(run: &Run) -> String {
    let application = Application::new(run, "message_offset bigint");
    let first = application.crashes("without-key");
    let second = application.finishes("without-key");
    let twice = application.session().run(
        "select string_agg(message_offset::text, ', ' order by message_offset) from
         (select message_offset from effects group by message_offset having count(*) = 2) as twice",
    );
    format!("first run: {first}; second: {second}; {}; twice: {}", application.rows(), twice.join(""))
}

pub(crate) fn handler_throws(run: &Run) -> String {
    let application = Application::new(run, "message_offset bigint primary key");
    let output = application.consume("by-offset", &["throw", "12"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).expect("text");
    let [before, threw, after] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(before.starts_with("firstOffset=0 lastOffset=11 "), "{said}");
    assert!(after.starts_with("firstOffset=10 "), "{said}");
    format!("{threw}: progress unchanged; redelivered: {after}; {}", application.rows())
}

pub(crate) fn one_transaction(run: &Run) -> String {
    let application = Application::new(run, "message_offset bigint");
    application
        .session()
        .run("create table position (next_offset bigint not null); insert into position (next_offset) values (0)");
    // Behind the side effect of offset 24, before its transaction is committed.
    let first = application.crashes("own-position");
    let position = application.session().number("select next_offset from position");
    let second = application.finishes("own-position");
    format!(
        "first run: {first}, crash before the commit; position {position}; second: {second}; {}",
        application.rows()
    )
}

/// A broker with 60 messages and a database for their side effects.
struct Application<'a> {
    run: &'a Run,
    broker: Broker,
    cluster: Cluster,
}

impl<'a> Application<'a> {
    fn new(run: &'a Run, key: &str) -> Application<'a> {
        let cluster = Cluster::start(&run.log("postgres.log"));
        let broker = run.broker(&run.data(), &[]);
        let mut talk = run.connect(&broker);
        for (offset, event) in events()[..MESSAGES].iter().enumerate() {
            talk.publish("DURABLE", event, offset as u64);
        }
        let application = Application { run, broker, cluster };
        application.session().run(&format!("create table effects ({key}, body text not null)"));
        application
    }

    fn session(&self) -> Session {
        self.cluster.session()
    }

    fn consume(&self, how: &str, fate: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_consume-into-postgres"));
        command.arg(self.broker.address()).arg(self.cluster.socket()).arg(how).args(fate);
        self.run.output(command, "consumer")
    }

    /// A consumer that crashes when it has applied 25. Answers what it said.
    fn crashes(&self, how: &str) -> String {
        let output = self.consume(how, &["crash", "25"]);
        assert_eq!(output.status.signal(), Some(9));
        let said = String::from_utf8(output.stdout).expect("text").trim().to_owned();
        assert_eq!(said, "firstOffset=0 lastOffset=24 seen=25 applied=25 skippedDuplicates=0");
        said.replace("firstOffset=0 ", "").replace(" skippedDuplicates=0", "")
    }

    /// One that reaches the end of the topic. Answers what it said.
    fn finishes(&self, how: &str) -> String {
        let output = self.consume(how, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    /// What is in the table in the end. Every message is.
    fn rows(&self) -> String {
        let mut session = self.session();
        let rows = session.number("select count(*) from effects");
        let distinct = session.number("select count(distinct message_offset) from effects");
        let bodies = session.run("select body from effects where message_offset = 59");
        assert_eq!(bodies, [events()[59].as_str()]);
        format!("{rows} rows, {distinct} distinct")
    }
}
