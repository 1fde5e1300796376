//! The exhaustive mode on small workloads: what is quick enough for every run of the tests. The whole is
//! `plimsoll-sim enumerate`.

use plimsoll_sim::enumerate::{Settings, WORKLOADS, Workload, enumerate};

fn workload(name: &str) -> &'static Workload {
    WORKLOADS.iter().find(|workload| workload.name == name).unwrap()
}

fn settings(depth: usize, threads: usize) -> Settings {
    Settings { depth: Some(depth), threads, states_max: 100_000, first_only: false }
}

/// Every workload but those whose states are too many for a debug build.
#[test]
fn no_single_crash_breaks_a_promise() {
    for workload in WORKLOADS.iter().filter(|workload| !matches!(workload.name, "rot" | "batch")) {
        let findings = enumerate(workload, &settings(1, 2), &|_| {}, &|_| {}).unwrap();
        assert_eq!(findings.broken, None, "{}", workload.name);
        let tally = findings.tallies[0];
        assert_eq!(tally.violations, 0);
        assert!(tally.ops > 5 && tally.crash_points >= 20 && tally.distinct > 50, "{}: {tally:?}", workload.name);
    }
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let run = |threads| enumerate(workload("roll-under-load"), &settings(2, threads), &|_| {}, &|_| {}).unwrap();
    let one = run(1);
    assert_eq!(one.broken, None);
    assert!(one.tallies[1].distinct > 3000, "{:?}", one.tallies);
    for threads in [2, 5] {
        assert_eq!(run(threads).tallies, one.tallies);
    }
}

#[test]
fn too_many_states_are_a_failure_and_not_a_sample() {
    let few = Settings { states_max: 100, ..settings(1, 1) };
    let refused = enumerate(workload("batch"), &few, &|_| {}, &|_| {}).unwrap_err();
    assert!(refused.starts_with("workload batch: crash point "), "{refused}");
    assert!(refused.contains("more than 100 states after a power loss"), "{refused}");
}
