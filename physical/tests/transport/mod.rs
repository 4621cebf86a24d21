//! What every transport promises, tested the same way on each (`testing::transport` has the tests), and what only some
//! do.

mod cancelling;
mod carrying;
mod disagreeing;
mod ending;
mod mixed;
mod opening;

use hexagram_physical::testing::transport::{End, Matrix, label, numbers, on_lane, open_together};

hexagram_physical::transport_matrix!(Matrix::BuiltIn);
