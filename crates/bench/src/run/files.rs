//! What a stopped or running store keeps in its data directory, told from outside by names and sizes.

use std::io;
use std::path::Path;

/// How many segments were ever made.
pub fn segments_made(data: &Path) -> io::Result<u64> {
    let mut made = 0;
    each_shard(data, &mut |shard| {
        let mut highest = 0;
        for entry in std::fs::read_dir(shard)? {
            let name = entry?.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_suffix(".db")?.parse().ok());
            highest = highest.max(number.unwrap_or(0));
        }
        made += highest;
        Ok(())
    })?;
    Ok(made)
}

/// Bytes of all segments, their logs included.
pub fn segment_bytes(data: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    each_shard(data, &mut |shard| {
        for entry in std::fs::read_dir(shard)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_segment = name.to_str().is_some_and(|name| {
                name.starts_with(|first: char| first.is_ascii_digit()) && name.contains(".db")
            });
            if is_segment {
                // It may go while this looks.
                bytes += entry.metadata().map_or(0, |metadata| metadata.len());
            }
        }
        Ok(())
    })?;
    Ok(bytes)
}

fn each_shard(data: &Path, look: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    for generation in folders(data, 'g')? {
        for shard in folders(&generation, 's')? {
            look(&shard)?;
        }
    }
    Ok(())
}

/// Folders whose names are this letter and a number.
fn folders(within: &Path, letter: char) -> io::Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(within)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(letter)?.parse::<u32>().ok());
        if number.is_some() {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted_by_number_and_weighed_with_their_logs() {
        let dir = tempfile::tempdir().unwrap();
        for (shard, name, bytes) in [
            ("g1/s0", "7.db", 10),
            ("g1/s0", "8.db", 20),
            ("g1/s0", "8.db-wal", 400),
            ("g1/s0", "6.idx", 5000),
            ("g1/s0", "state-1.db", 9000),
            ("g1/s1", "3.db", 1),
            ("other/s1", "90.db", 7),
        ] {
            let folder = dir.path().join(shard);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(segments_made(dir.path()).unwrap(), 11);
        assert_eq!(segment_bytes(dir.path()).unwrap(), 431);
    }
}
