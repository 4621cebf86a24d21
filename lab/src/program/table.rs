//! Lines that rank 0 prints for all ranks. If the output fails or its reader is gone, all ranks stop.
//!
//! A line that cannot be printed is no failure of the rank. The other ranks end as after the last line, without an
//! error.

use super::console::{PrintError, print};
use hexagram::{Communicator, Result};

/// Lines that a measurement prints, one by one.
pub struct Table<'a> {
    comm: &'a Communicator,
    /// On rank 0: the error that kept a line from being printed.
    lost: Option<PrintError>,
}

impl<'a> Table<'a> {
    /// Creates a table of these ranks.
    pub fn new(comm: &'a Communicator) -> Self {
        Table { comm, lost: None }
    }

    /// Prints a line on rank 0. Returns, on every rank, whether it was printed. A collective call.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn line(&mut self, line: &str) -> Result<bool> {
        if self.comm.rank() == 0 {
            self.lost = print(line).err();
        }
        let mut printed = [u8::from(self.lost.is_none())];
        self.comm.blocking().broadcast(&mut printed, 0)?;
        Ok(printed == [1])
    }

    /// Ends the table.
    ///
    /// # Errors
    /// [`PrintError`] on rank 0 if a line was lost.
    pub fn finish(self) -> Result<(), PrintError> {
        self.lost.map_or(Ok(()), Err)
    }
}
