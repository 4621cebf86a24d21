//! What a training program needs around hexagram: data that is at hand, figures on disk, a picture of the run
//! and a bar on the terminal. Open it when you write a training program and want to borrow a piece; nothing
//! here communicates.
//!
//! | file | what is in it |
//! |---|---|
//! | `digits.rs` | 1797 images of handwritten digits, compiled in, or read from a file |
//! | `metrics.rs` | every step and epoch as a line of JSON in the run's directory |
//! | `plot.rs`, `plot/axis.rs` | loss, accuracy and throughput as one SVG |
//! | `progress.rs` | how far the run is, on the terminal of rank 0 |

pub mod digits;
pub mod metrics;
pub mod plot;
pub mod progress;
