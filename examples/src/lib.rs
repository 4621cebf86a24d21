//! Things that a training program needs around hexagram: data that is at hand, figures on disk, a picture of the run
//! and a bar on the terminal. Open it when you write a training program and want to borrow a piece; nothing
//! here communicates but `start` and `baseline`.
//!
//! | file | what is in it |
//! |---|---|
//! | `baseline.rs` | what synchronous SGD would send |
//! | `defaults.rs` | with which learning rate each algorithm learns the digits |
//! | `device.rs` | what `--device` opens, for candle and for hexagram |
//! | `digits.rs` | 1797 images of handwritten digits, compiled in, or read from a file |
//! | `log.rs` | what a training tells while it goes on, and at its end |
//! | `made_with.rs` | with which options and data a training is made, for those that go on |
//! | `metrics.rs` | every step and epoch as a line of JSON in the run's directory |
//! | `model.rs` | what `--model` names, and how a seed initializes it |
//! | `net.rs`, `resnet.rs` | a small convolutional net for the digits, and ResNet-50 |
//! | `options.rs` | what the command line asks for, checked before anything starts |
//! | `saves.rs` | its checkpoints: when, what if one fails, and how a run goes on |
//! | `start.rs` | one rank, or all of them: as processes, or as threads |
//! | `report.rs` | what a run says of itself at its end |
//! | `plot.rs`, `plot/axis.rs` | loss, accuracy and throughput as one SVG |
//! | `progress.rs` | how far the run is, on the terminal of rank 0 |

pub mod baseline;
pub mod data;
pub mod defaults;
pub mod device;
pub mod digits;
pub mod log;
pub mod made_with;
pub mod metrics;
pub mod model;
pub mod net;
pub mod options;
pub mod plot;
pub mod progress;
pub mod report;
pub mod resnet;
pub mod saves;
pub mod start;

/// The error that ends an example.
pub type Failure = Box<dyn std::error::Error>;
