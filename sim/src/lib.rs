//! A simulated disk that loses power, and the Plimsoll broker on it.
#![forbid(unsafe_code)]

pub mod batch;
pub mod checker;
pub mod disk;
pub mod enumerate;
pub mod model;
pub mod mutant;
pub mod naive;
pub mod reply;
pub mod report;
pub mod shrink;
pub mod tape;
pub mod trace;
mod view;
pub mod work_queue;
pub mod workload;
pub mod world;
