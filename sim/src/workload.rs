//! What kind of world a run is: drawn anew for each seed (swarm testing), so that some runs have no faults at all, some
//! have one kind of fault often, and limits are tiny in some and as shipped in others.

use crate::disk::{POSIX, Profile};
use crate::tape::{Concern, Decider, Rate};
use plimsoll_core::config::Config;
use plimsoll_core::settings::{Setting, Settings};

/// What a client mostly does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Publishes, and publishes again what was not answered.
    Producer,
    /// Fetches for a group, keeps what it did for each offset, and acknowledges.
    Consumer,
    /// Reads anywhere, asks for everything.
    Reader,
    /// Garbage, oversized lines, half-open connections, no reading.
    Rude,
}

impl Role {
    const ALL: [Role; 4] = [Role::Producer, Role::Consumer, Role::Reader, Role::Rude];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Producer => "producer",
            Role::Consumer => "consumer",
            Role::Reader => "reader",
            Role::Rude => "rude client",
        }
    }
}

/// Which faults exist, and how often.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The process is killed after an effect.
    pub kill: Rate,
    /// The power goes after an effect.
    pub power: Rate,
    /// A write, cut or creation fails for good.
    pub write_error: Rate,
    /// A write, creation or chunk of space finds no room, at random.
    pub no_space: Rate,
    /// A force of a file or a directory fails.
    pub force_error: Rate,
    /// A read fails.
    pub read_error: Rate,
    /// No descriptor is left.
    pub too_many_files: Rate,
    /// A connection is reset while bytes are under way.
    pub reset: Rate,
    /// Bytes come in pieces, or late.
    pub fragments: Rate,
    /// An effect or its completion takes long.
    pub slow: Rate,
    /// The operator does something.
    pub operator: Rate,
}

impl Rates {
    /// Nothing goes wrong.
    pub const CALM: Rates = Rates {
        kill: Rate::NEVER,
        power: Rate::NEVER,
        write_error: Rate::NEVER,
        no_space: Rate::NEVER,
        force_error: Rate::NEVER,
        read_error: Rate::NEVER,
        too_many_files: Rate::NEVER,
        reset: Rate::NEVER,
        fragments: Rate::NEVER,
        slow: Rate::NEVER,
        operator: Rate::NEVER,
    };
}

/// One run's world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The file system.
    pub profile: &'static Profile,
    /// 512 or 4096.
    pub sector_bytes: u32,
    /// The broker's configuration.
    pub config: Config,
    /// The topics that clients use; the first is `default`.
    pub topics: Vec<String>,
    /// The groups that clients use.
    pub groups: Vec<String>,
    /// The work queues that clients use, of each topic; empty: nobody does.
    pub queues: Vec<String>,
    /// The clients.
    pub clients: Vec<Role>,
    /// How many things each client does.
    pub actions: u32,
    /// How many requests a client has under way at once.
    pub window: usize,
    /// The largest payload of ordinary messages.
    pub payload_bytes: u32,
    /// A client's mean pause between actions, nanoseconds.
    pub pause_ns: u64,
    /// The ids that producers give themselves; empty: nobody has one.
    pub producers: Vec<u64>,
    /// Whether messages are published in batches, too.
    pub batches: bool,
    /// What goes wrong.
    pub rates: Rates,
    /// Whether clients purge.
    pub purges: bool,
    /// Whether clients delete topics and groups.
    pub deletes: bool,
    /// Whether segments are packed: then there are no groups, which would need what is packed away.
    pub packs: bool,
}

fn number<T: Copy + ToString>(d: &mut Decider, what: &str, of: &[T]) -> T {
    of[d.choose(Concern::Plan, of.len(), format_args!("plan, {what}"), &|picked| of[picked].to_string())]
}

impl Plan {
    /// Draws a world. Every first answer is the mild one: a default broker, one client, nothing that goes wrong.
    pub fn draw(d: &mut Decider) -> Plan {
        let profiles = Profile::all();
        // The harshest most of the time: what holds there holds everywhere.
        let weights = [10, 3, 2, 2, 2, 2];
        let picked = d.weighted(Concern::Plan, &weights, format_args!("plan, file system"), &|picked| {
            profiles[picked].name.to_owned()
        });
        let profile = profiles[picked];
        let sector_bytes = number(d, "sector bytes", &[512, 4096]);
        let config = draw_config(d, profile, sector_bytes);

        let topics = number(d, "topics", &[1, 1, 1, 2, 3]);
        let groups = number(d, "groups", &[1, 2, 3]);
        let clients = number(d, "clients", &[1, 2, 3, 4, 6]);
        let roles = (0..clients).map(|client| {
            // The first one publishes: a world without messages shows nothing.
            let weights: [u32; 4] = if client == 0 { [1, 0, 0, 0] } else { [4, 4, 2, 1] };
            Role::ALL[d.weighted(Concern::Plan, &weights, format_args!("plan, client {client}"), &|picked| {
                Role::ALL[picked].as_str().to_owned()
            })]
        });
        let roles: Vec<Role> = roles.collect();
        let budget = number(d, "actions of all clients", &[160, 60, 240, 400, 1200, 12, 30]);
        let mut plan = Plan {
            profile,
            sector_bytes,
            topics: (0..topics).map(|at| if at == 0 { "default".to_owned() } else { format!("t{at}") }).collect(),
            groups: (0..groups).map(|at| format!("g{at}")).collect(),
            queues: (0..number(d, "work queues", &[0, 0, 1, 2])).map(|at| format!("q{at}")).collect(),
            actions: budget / clients as u32,
            clients: roles,
            window: number(d, "requests under way", &[1, 2, 4, 16]),
            payload_bytes: number(d, "payload bytes", &[64, 12, 200, 700, 3000]).min(config.payload_bytes_max),
            producers: [1, 7, u64::MAX, 8, 9][..number(d, "producers with ids", &[0, 0, 1, 2, 5])].to_vec(),
            batches: number(d, "batches", &["no", "yes", "yes"]) == "yes",
            pause_ns: number(d, "pause between actions, µs", &[50, 1, 500, 20_000]) * 1000,
            rates: draw_rates(d),
            purges: number(d, "purges", &["no", "no", "yes"]) == "yes",
            deletes: number(d, "deletes", &["no", "no", "no", "yes"]) == "yes",
            packs: false,
            config,
        };
        if !plan.queues.is_empty() && number(d, "packs", &["no", "no", "yes"]) == "yes" {
            plan.packs = true;
            plan.groups.clear();
            let defaults = &mut plan.config.topic_defaults;
            defaults.set(Setting::RetainConsumed, Some(1));
            defaults.set(Setting::PackBelow, Some(number(d, "pack below percent", &[100, 100, 60])));
            // What one queue has not seen is not packed away.
            plan.queues.truncate(1);
            // Closed segments, somebody who confirms, and time for what comes a second after that.
            plan.config.segment_bytes = plan.config.segment_bytes.min(number(d, "packed segment bytes", &[1024, 512]));
            plan.clients.extend([Role::Consumer; 2]);
            plan.actions *= 3;
            // A life is to last until something is packed.
            for rate in [&mut plan.rates.kill, &mut plan.rates.power] {
                rate.of *= 6;
            }
            plan.pause_ns = plan.pause_ns.max(300_000_000);
        }
        // The default topic can't be deleted.
        if plan.deletes && plan.topics.len() == 1 {
            plan.topics.push("t1".to_owned());
        }
        plan
    }

    /// Whether the start of a log may move.
    pub fn moves_start(&self) -> bool {
        let policies = [Setting::RetainBytes, Setting::RetainMs, Setting::RetainConsumed, Setting::CapacityBytes];
        self.purges
            || self.config.total_capacity_bytes > 0
            || policies.iter().any(|setting| self.config.topic_defaults.get(*setting).is_some())
    }

    /// Whether the file system is the harshest.
    pub fn is_harshest(&self) -> bool {
        self.profile.name == POSIX.name
    }
}

fn draw_config(d: &mut Decider, profile: &Profile, sector_bytes: u32) -> Config {
    let pad_forces = if profile.power_safe_overwrite {
        number(d, "pad-forces", &[0, 0, 0, 0, 0, 512, 4096])
    } else {
        // Without power-safe overwrite every force begins on a sector of its own; that is what the setting is for.
        sector_bytes
    };
    let defaults = Config::default();
    let mut topic_defaults = Settings::NONE;
    for (setting, name, of) in [
        (Setting::FlushIntervalMs, "flush interval ms", &[0, 0, 0, 1, 30]),
        (Setting::FlushMessages, "flush messages", &[0, 0, 0, 2, 20]),
        (Setting::DedupSequences, "dedup sequences", &[1000, 1000, 1000, 1, 3]),
        (Setting::DedupMs, "dedup ms", &[86_400_000, 86_400_000, 86_400_000, 0, 50]),
        (Setting::MaxDeliveries, "max deliveries", &[0, 0, 1, 2, 4]),
    ] {
        topic_defaults.set(setting, Some(number(d, name, of)));
    }
    // A policy that is often in the way of another one shows nothing of itself.
    // With the capacity of all topics together, if any.
    type Drawn = (&'static str, u64, &'static [(Setting, u64)]);
    let policies: [Drawn; 8] = [
        ("nothing", 0, &[]),
        ("bytes", 0, &[(Setting::RetainBytes, 1500)]),
        ("age", 0, &[(Setting::RetainMs, 20), (Setting::RollMs, 10)]),
        ("capacity, reject", 0, &[(Setting::CapacityBytes, 2500)]),
        ("capacity, drop-oldest", 0, &[(Setting::CapacityBytes, 2500), (Setting::OnFull, 1)]),
        ("consumption", 0, &[(Setting::RetainConsumed, 1), (Setting::RollMs, 30)]),
        ("total capacity, reject", 4000, &[]),
        ("total capacity, drop-oldest", 4000, &[(Setting::OnFull, 1)]),
    ];
    let picked = d.weighted(Concern::Plan, &[11, 1, 1, 1, 1, 1, 1, 1], format_args!("plan, retention"), &|picked| {
        policies[picked].0.to_owned()
    });
    let (_, total_capacity_bytes, settings) = policies[picked];
    for (setting, value) in settings {
        topic_defaults.set(*setting, Some(*value));
    }
    Config {
        topic_defaults,
        total_capacity_bytes,
        segment_bytes: number(d, "segment bytes", &[64 << 20, 512, 1024, 2048, 4096, 16 << 10]),
        payload_bytes_max: number(d, "max payload", &[64 << 10, 100, 1000, 4096]),
        publish_batch_bytes_max: number(d, "max publish batch", &[1 << 20, 100, 3000]),
        queue_messages: number(d, "queue messages", &[1024, 1, 2, 8, 64]),
        queue_bytes: number(d, "queue bytes", &[64 << 20, 200, 5000]),
        batch_messages: number(d, "batch messages", &[256, 1, 3, 16]),
        batch_bytes: number(d, "batch bytes", &[1 << 20, 1, 300, 4096]),
        group_commit: pad_forces != 0 || number(d, "group commit", &["on", "on", "on", "off"]) == "on",
        space_ahead: number(d, "space ahead", &[4096, 0, 512, 1000, 256 << 10]),
        pad_forces,
        gather_ns_max: number(d, "gather ns", &[100_000, 0, 1_000_000]),
        connections_max: number(d, "max connections", &[1024, 1024, 3]),
        unanswered_max: number(d, "max unanswered", &[1024, 1, 5]),
        unsent_bytes_max: number(d, "max unsent bytes", &[1 << 20, 1, 2000]),
        send_stall_ms_max: number(d, "send stall ms", &[30_000, 50]),
        fetch_wait_ms_max: number(d, "fetch wait ms", &[60_000, 20]),
        fetch_bytes_max: number(d, "fetch bytes", &[4 << 20, 1, 1500]),
        group_idle_ms: number(d, "group idle ms", &[300_000, 10, 1000]),
        auto_create: number(d, "auto-create", &["no", "yes"]) == "yes",
        reserved_max: number(d, "max reserved", &[1024, 1024, 1, 4]),
        pending_max: number(d, "max pending", &[100_000, 100_000, 1, 6]),
        journal_bytes: number(d, "journal bytes", &[1 << 20, 512, 700, 4096]),
        producers_max: number(d, "max producers", &[1000, 1, 2]),
        idle_anchor_ms: number(d, "idle anchor ms", &[500, 1, 20]),
        ballast_bytes: number(d, "ballast bytes", &[4096, 0, 16 << 10]),
        disk_full_retry_ms: number(d, "disk full retry ms", &[500, 5]),
        recent_bytes: number(d, "recent bytes", &[8 << 20, 0, 1000]),
        copy_whole_bytes_max: number(d, "copy whole bytes", &[1 << 20, 0, 600, 2048]),
        index_stride_bytes: number(d, "index stride", &[64 << 10, 1, 150, 1000]),
        index_bytes: number(d, "index bytes", &[4 << 20, 0, 400]),
        ..defaults
    }
}

fn draw_rates(d: &mut Decider) -> Rates {
    let words = ["nothing", "process kills", "power losses", "both", "both, often"];
    let crashes =
        d.weighted(Concern::Plan, &[1, 2, 5, 5, 4], format_args!("plan, crashes"), &|picked| words[picked].to_owned());
    let (kill, power) = match crashes {
        0 => (Rate::NEVER, Rate::NEVER),
        1 => (Rate::one_in(90), Rate::NEVER),
        2 => (Rate::NEVER, Rate::one_in(110)),
        3 => (Rate::one_in(240), Rate::one_in(160)),
        _ => (Rate::one_in(60), Rate::one_in(40)),
    };
    // A fault that exists in few worlds shows itself there; were all in all, each would hide the others.
    let mut rate = |what: &str, exists_one_in: u32, often: u32| {
        let of = [0, often, often * 8];
        let weights = [2 * exists_one_in - 2, 1, 1];
        let picked = d.weighted(Concern::Plan, &weights, format_args!("plan, {what}"), &|picked| {
            if picked == 0 { "never".to_owned() } else { format!("one in {}", of[picked]) }
        });
        if picked == 0 { Rate::NEVER } else { Rate::one_in(of[picked]) }
    };
    Rates {
        kill,
        power,
        write_error: rate("write errors", 5, 40),
        no_space: rate("full at random", 5, 25),
        force_error: rate("force errors", 4, 25),
        read_error: rate("read errors", 8, 25),
        too_many_files: rate("too many files", 8, 15),
        reset: rate("resets", 3, 30),
        fragments: rate("fragments", 2, 3),
        slow: rate("slow effects", 2, 3),
        operator: rate("operator", 3, 60),
    }
}
