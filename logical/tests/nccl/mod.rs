//! Memory of GPUs that travels through NCCL: results, ranks that disagree or end, and what is counted. Each rank has a
//! GPU of its own; where there are fewer, or no NCCL, the tests say so and pass. `physical/cuda/README.md` tells how they run
//! without a GPU.

mod collectives;
mod endings;
mod failures;
mod faults;
mod groups;
mod messages;
mod order;
mod ranks;
