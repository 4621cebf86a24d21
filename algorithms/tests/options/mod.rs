//! Options of every algorithm: as text, in code, in checkpoints, and out of range. Each file is a module here.

mod options_of_a_checkpoint;
mod out_of_range;
mod spelling;
