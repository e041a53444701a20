//! What reaches the disk for each byte that was sent: everything that the device writes between two
//! syncs, the file system's own bookkeeping included.

use std::fs::File;
use std::path::Path;

use super::series::Figures;
use crate::BenchError;
use crate::load::Report;
use crate::payload;
use crate::process::Server;
use crate::store::kernel::device_bytes;

/// Writes counted so far, after everything was synced.
pub struct Written {
    /// By the device of the data, for whomever; absent where the kernel does not tell.
    device: Option<u64>,
    /// By the server's process.
    process: u64,
}

impl Written {
    /// Syncs the file system of `data`, then counts.
    pub fn now(data: &Path, server: &Server) -> Result<Self, BenchError> {
        rustix::fs::syncfs(File::open(data)?)?;
        Ok(Self {
            device: device_bytes(data)?,
            process: server.written()?,
        })
    }

    /// Adds what was written since, for each byte of data that `report` counts.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub fn compare(
        self,
        (data, server): (&Path, &Server),
        (load, report): (&str, &Report),
        figures: &mut Figures,
    ) -> Result<(), BenchError> {
        let after = Self::now(data, server)?;
        let sent = (report.events_in_all * payload::DATA_BYTES as u64).max(1) as f64;
        let per_byte = |before: u64, after: u64| after.saturating_sub(before) as f64 / sent;
        let process = per_byte(self.process, after.process);
        let device = self.device.zip(after.device);
        figures.note(match device {
            Some(_) => "disk.bytes_per_byte counts what the device under the data wrote.",
            None => {
                "disk.bytes_per_byte counts what the server's process wrote: the kernel tells nothing \
                 of the device under the data."
            }
        });
        let counted = device.map_or(process, |(before, after)| per_byte(before, after));
        figures.add(format!("disk.bytes_per_byte.{load}"), "bytes/byte", counted);
        figures.add(
            format!("disk.process_bytes_per_byte.{load}"),
            "bytes/byte",
            process,
        );
        Ok(())
    }
}
