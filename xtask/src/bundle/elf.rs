//! The libraries and search paths that a Linux program or shared library names (ELF, 64 bits,
//! little-endian): reading them and changing them.
//!
//! A change never moves anything: the new name overwrites the old one and is not longer, as in
//! `chrpath`.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

// Names as in elf.h.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const SHT_DYNSYM: u64 = 11;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// An entry of the dynamic section whose value is a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A library that the loader has to find.
    Needed = 1,
    /// The library's own name.
    Soname = 14,
    /// Folders to look in, of the older kind.
    RPath = 15,
    /// Folders to look in.
    RunPath = 29,
}

const ENTRIES: [Entry; 4] = [Entry::Needed, Entry::Soname, Entry::RPath, Entry::RunPath];

/// A file's bytes, and the positions of its names.
#[derive(Debug)]
pub(super) struct Elf {
    bytes: Vec<u8>,
    /// The table of names that the dynamic section points into.
    names: Range<usize>,
    /// Entries with the positions of their names in the table.
    entries: Vec<(Entry, usize)>,
    /// Positions of the symbols' names in the table.
    symbols: Vec<usize>,
}

impl Elf {
    /// # Errors
    ///
    /// When the bytes are of another format, end too early, or are linked statically.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self> {
        ensure!(
            bytes.starts_with(MAGIC),
            "it is not a program or library of 64-bit Linux"
        );
        let mut loads = Vec::new();
        let mut dynamic = None;
        let (start, size, count) = (
            word(&bytes, 32, 8)?,
            word(&bytes, 54, 2)?,
            word(&bytes, 56, 2)?,
        );
        for index in 0..count {
            let header = at(start, index, size)?;
            let (kind, offset) = (word(&bytes, header, 4)?, word(&bytes, header + 8, 8)?);
            let (address, length) = (word(&bytes, header + 16, 8)?, word(&bytes, header + 32, 8)?);
            match kind {
                PT_LOAD => loads.push((address, offset, length)),
                PT_DYNAMIC => dynamic = Some((offset, length)),
                _ => {}
            }
        }
        let dynamic = dynamic.context("it is linked statically")?;
        let (table, entries) = dynamic_entries(&bytes, dynamic)?;
        let (address, length) = table;
        let load = loads
            .iter()
            .find(|(from, _, length)| (*from..from.saturating_add(*length)).contains(&address));
        let (from, offset, _) = load.context("its names are nowhere in the file")?;
        let start = at(*offset, address - from, 1)?;
        let end = at(start as u64, length, 1)?;
        ensure!(end <= bytes.len(), "the file ends within its names");
        let symbols = symbols(&bytes)?;
        Ok(Self {
            bytes,
            names: start..end,
            entries,
            symbols,
        })
    }

    /// The names of all entries of a kind.
    pub(super) fn names(&self, kind: Entry) -> Vec<&str> {
        let of_kind = self.entries.iter().filter(|(entry, _)| *entry == kind);
        of_kind
            .filter_map(|(_, position)| self.name(*position))
            .collect()
    }

    /// Replaces a name that an entry of this kind has.
    ///
    /// # Errors
    ///
    /// When there is no such entry, the new name is longer, or another name uses a part of the
    /// old one.
    pub(super) fn rename(&mut self, kind: Entry, old: &str, new: &str) -> Result<()> {
        let found = self
            .entries
            .iter()
            .find(|(entry, position)| *entry == kind && self.name(*position) == Some(old));
        let (_, position) = *found.with_context(|| format!("{old} is not among its names"))?;
        ensure!(
            new.len() <= old.len(),
            "{new} is longer than {old}, which it must replace"
        );
        let taken = position + 1..=position + old.len();
        let mut others = self
            .entries
            .iter()
            .map(|(_, other)| other)
            .chain(&self.symbols);
        if others.any(|other| taken.contains(other)) {
            bail!("another name is a part of {old}");
        }
        let start = self.names.start + position;
        self.bytes[start..start + old.len()].fill(0);
        self.bytes[start..start + new.len()].copy_from_slice(new.as_bytes());
        Ok(())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn name(&self, position: usize) -> Option<&str> {
        let from = self.bytes.get(self.names.clone())?.get(position..)?;
        let end = from.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&from[..end]).ok()
    }
}

/// Address and length of the table of names, and the entries that point into it.
type Dynamic = ((u64, u64), Vec<(Entry, usize)>);

fn dynamic_entries(bytes: &[u8], (offset, length): (u64, u64)) -> Result<Dynamic> {
    let (mut address, mut size) = (None, None);
    let mut entries = Vec::new();
    for index in 0..length / 16 {
        let position = at(offset, index, 16)?;
        let (tag, value) = (word(bytes, position, 8)?, word(bytes, position + 8, 8)?);
        match tag {
            DT_NULL => break,
            DT_STRTAB => address = Some(value),
            DT_STRSZ => size = Some(value),
            _ => {
                let kind = ENTRIES.into_iter().find(|entry| *entry as u64 == tag);
                let value =
                    usize::try_from(value).context("a name's position does not fit in memory")?;
                entries.extend(kind.map(|kind| (kind, value)));
            }
        }
    }
    let table = address.zip(size).context("it has no table of names")?;
    Ok((table, entries))
}

/// Positions of the symbols' names in the table; none in a file without section headers.
fn symbols(bytes: &[u8]) -> Result<Vec<usize>> {
    let (start, size, count) = (
        word(bytes, 40, 8)?,
        word(bytes, 58, 2)?,
        word(bytes, 60, 2)?,
    );
    let mut names = Vec::new();
    for index in 0..count {
        let header = at(start, index, size)?;
        if word(bytes, header + 4, 4)? != SHT_DYNSYM {
            continue;
        }
        let (offset, length) = (word(bytes, header + 24, 8)?, word(bytes, header + 32, 8)?);
        for symbol in 0..length / 24 {
            names.push(word(bytes, at(offset, symbol, 24)?, 4)? as usize);
        }
    }
    Ok(names)
}

/// Position of the entry `index` in a table that begins at `start`.
fn at(start: u64, index: u64, size: u64) -> Result<usize> {
    let position = index
        .checked_mul(size)
        .and_then(|offset| offset.checked_add(start));
    let position = position.and_then(|position| usize::try_from(position).ok());
    position
        .filter(|position| *position < usize::MAX / 2)
        .context("a position does not fit in memory")
}

/// The little-endian number in these bytes.
fn word(bytes: &[u8], position: usize, length: usize) -> Result<u64> {
    let bytes = bytes.get(position..position + length);
    let bytes = bytes.context("the file ends too early")?;
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test's own program.
    fn own() -> Vec<u8> {
        let program = std::env::current_exe().expect("a program");
        std::fs::read(program).expect("it can be read")
    }

    const LIBC: &str = "libc.so.6";

    #[test]
    fn a_needed_library_gets_another_name_and_nothing_else_changes() {
        let before = Elf::parse(own()).expect("a program of Linux");
        let needed: Vec<String> = before
            .names(Entry::Needed)
            .into_iter()
            .map(String::from)
            .collect();
        assert!(needed.iter().any(|name| name == LIBC), "{needed:?}");

        let mut changed = Elf::parse(own()).expect("a program of Linux");
        changed
            .rename(Entry::Needed, LIBC, "$ORIGIN/c")
            .expect("it is not longer");
        let after = Elf::parse(changed.bytes().to_vec()).expect("still a program");
        let renamed: Vec<String> = needed
            .iter()
            .map(|name| name.replace(LIBC, "$ORIGIN/c"))
            .collect();
        assert_eq!(after.names(Entry::Needed), renamed);
        // Equal blocks are skipped as a whole: the program is large.
        let blocks = before.bytes().chunks(4096).zip(after.bytes().chunks(4096));
        let blocks = blocks.filter(|(before, after)| before != after);
        let bytes = blocks.flat_map(|(before, after)| before.iter().zip(after));
        let differing = bytes.filter(|(before, after)| before != after).count();
        assert!(
            (1..=LIBC.len()).contains(&differing),
            "{differing} bytes differ"
        );
    }

    #[test]
    fn longer_or_missing_name_is_rejected() {
        let mut program = Elf::parse(own()).expect("a program of Linux");
        for (old, new) in [(LIBC, "libc-long.so.6"), ("libnowhere.so", "a")] {
            program
                .rename(Entry::Needed, old, new)
                .expect_err("it cannot be done");
        }
        assert_eq!(program.bytes(), own());
    }

    #[test]
    fn name_with_a_shared_tail_is_rejected() {
        let mut program = Elf::parse(own()).expect("a program of Linux");
        let position = program
            .entries
            .iter()
            .find(|(_, position)| program.name(*position) == Some(LIBC));
        let (_, position) = *position.expect("it needs libc");
        program.symbols.push(position + 3);
        let rejected = program.rename(Entry::Needed, LIBC, "c");
        assert!(rejected.is_err_and(|error| error.to_string().contains("a part of")));
    }

    #[test]
    fn other_files_are_rejected() {
        let own = own();
        for bytes in [
            b"#!/bin/sh\n".to_vec(),
            Vec::new(),
            own[..200].to_vec(),
            own[..64].to_vec(),
        ] {
            let length = bytes.len();
            assert!(Elf::parse(bytes).is_err(), "{length} bytes");
        }
    }
}
