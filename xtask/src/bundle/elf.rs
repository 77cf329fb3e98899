//! The libraries and search paths that a Linux program or shared library names (ELF, 64 bits,
//! little-endian): reading them and changing them.
//!
//! A change never moves anything: the new name overwrites the old one and is not longer, as in
//! `chrpath`.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use object::LittleEndian;
use object::elf::{self, DynamicTag, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};

/// An entry of the dynamic section whose value is a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A library that the loader has to find.
    Needed,
    /// The library's own name.
    Soname,
    /// Folders to look in, of the older kind.
    RPath,
    /// Folders to look in.
    RunPath,
}

impl Entry {
    fn of(tag: DynamicTag) -> Option<Self> {
        match tag {
            elf::DT_NEEDED => Some(Self::Needed),
            elf::DT_SONAME => Some(Self::Soname),
            elf::DT_RPATH => Some(Self::RPath),
            elf::DT_RUNPATH => Some(Self::RunPath),
            _ => None,
        }
    }
}

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
        let data = bytes.as_slice();
        let header = FileHeader64::<LittleEndian>::parse(data)
            .context("it is not a program or library of 64-bit Linux")?;
        let order = header
            .endian()
            .context("it is of a machine with another order of bytes")?;
        let segments = header.program_headers(order, data)?;
        let dynamic = segments
            .iter()
            .find_map(|segment| segment.dynamic(order, data).transpose())
            .context("it is linked statically")??;
        let value_of = |tag: DynamicTag| {
            let entry = dynamic.iter().find(|entry| entry.tag(order) == tag);
            entry.map(|entry| entry.val(order))
        };
        let table = value_of(elf::DT_STRTAB).zip(value_of(elf::DT_STRSZ));
        let (address, length) = table.context("it has no table of names")?;
        let start = segments
            .iter()
            .filter(|segment| segment.p_type(order) == elf::PT_LOAD)
            .find_map(|segment| {
                let within = address.checked_sub(segment.p_vaddr(order))?;
                let is_inside = within < segment.p_filesz(order);
                is_inside.then(|| segment.p_offset(order).checked_add(within))?
            })
            .context("its names are nowhere in the file")?;
        let end = start
            .checked_add(length)
            .and_then(|end| usize::try_from(end).ok());
        let end = end.filter(|end| *end <= data.len());
        let end = end.context("the file ends within its names")?;
        let entries = dynamic
            .iter()
            .take_while(|entry| entry.tag(order) != elf::DT_NULL);
        let entries = entries.filter_map(|entry| {
            let kind = Entry::of(entry.tag(order))?;
            Some((kind, usize::try_from(entry.val(order)).ok()?))
        });
        let entries = entries.collect();
        let sections = header.sections(order, data)?;
        let symbols = sections.symbols(order, data, elf::SHT_DYNSYM)?;
        let symbols = symbols.iter().map(|symbol| symbol.st_name(order) as usize);
        let symbols = symbols.collect();
        let names = end - length as usize..end;
        Ok(Self {
            bytes,
            names,
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
