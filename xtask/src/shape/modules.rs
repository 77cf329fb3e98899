//! The modules of the measured crates, and the module that a path leads to.
//!
//! A name that a module imports or re-exports leads to the module that defines it: a use of
//! `super::Name` counts for the file behind it, not for the folder in between.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::source::{Source, Sources, is_test};

/// A re-export may lead to another one, so often at most.
const REEXPORTS_MAX: usize = 8;

/// A module: its package, and its path from the root of the crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Module {
    pub(super) package: String,
    pub(super) path: Vec<String>,
}

/// A use of one file's module by another's, with the file that it stands in.
pub(super) struct Use {
    pub(super) file: String,
    pub(super) from: Module,
    pub(super) to: Module,
}

/// Every use of another file's module, without those by tests.
pub(super) fn uses(sources: &Sources) -> Vec<Use> {
    let mut modules = Modules::default();
    let mut paths = Vec::new();
    for source in sources.library() {
        let Some(module) = Module::of(source) else {
            continue;
        };
        modules.files.insert(module.clone());
        let mut reader = Reader {
            modules: &mut modules,
            at: module.clone(),
            paths: Vec::new(),
        };
        reader.visit_file(&source.parsed);
        paths.push((source, module, reader.paths));
    }
    let mut uses = Vec::new();
    for (source, from, paths) in paths {
        if modules.is_of_tests(&from) {
            continue;
        }
        for (at, path) in paths {
            let to = modules.resolve(&at, &path, 0);
            if let Some(to) = to
                .and_then(|to| modules.file_of(to))
                .filter(|to| *to != from)
            {
                uses.push(Use {
                    file: source.path.clone(),
                    from: from.clone(),
                    to,
                });
            }
        }
    }
    uses
}

impl Module {
    fn of(source: &Source) -> Option<Self> {
        let (package, inside) = source.within_crate()?;
        let path: Vec<String> = inside
            .trim_end_matches(".rs")
            .trim_end_matches("/mod")
            .split('/')
            .map(str::to_owned)
            .collect();
        let path = match path[0].as_str() {
            "bin" | "main" => return None,
            "lib" => Vec::new(),
            _ => path,
        };
        Some(Self { package, path })
    }

    fn root(package: &str) -> Self {
        Self {
            package: package.to_owned(),
            path: Vec::new(),
        }
    }

    fn child(&self, name: &str) -> Self {
        let mut child = self.clone();
        child.path.push(name.to_owned());
        child
    }

    fn parent(mut self) -> Option<Self> {
        self.path.pop()?;
        Some(self)
    }
}

#[derive(Default)]
struct Modules {
    files: BTreeSet<Module>,
    /// The names that each module imports, re-exports or has as a module within its file.
    names: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
    /// Modules that are compiled for tests only.
    of_tests: BTreeSet<Module>,
}

impl Modules {
    fn is_of_tests(&self, module: &Module) -> bool {
        (0..=module.path.len()).any(|length| {
            let mut above = module.clone();
            above.path.truncate(length);
            self.of_tests.contains(&above)
        })
    }

    fn is_known(&self, module: &Module) -> bool {
        self.files.contains(module) || self.names.contains_key(module)
    }

    fn imports(&self, module: &Module, name: &str) -> bool {
        let names = self.names.get(module);
        names.is_some_and(|names| names.contains_key(name))
    }

    /// The module of the file that a module stands in.
    fn file_of(&self, module: Module) -> Option<Module> {
        if self.files.contains(&module) {
            return Some(module);
        }
        self.file_of(module.parent()?)
    }

    /// The module that defines the item at the end of `path`, which stands in `at`. None where
    /// that is in no measured crate.
    fn resolve(&self, at: &Module, path: &[String], reexports: usize) -> Option<Module> {
        let first = path.first()?.as_str();
        let (mut module, mut rest) = match first {
            "crate" => (Module::root(&at.package), &path[1..]),
            "self" => (at.clone(), &path[1..]),
            "super" => (at.clone(), path),
            _ => {
                let package = Module::root(&first.replace('_', "-"));
                if self.files.contains(&package) {
                    (package, &path[1..])
                } else if self.is_known(&at.child(first)) || self.imports(at, first) {
                    (at.clone(), path)
                } else {
                    return None;
                }
            }
        };
        while let Some((name, after)) = rest.split_first() {
            let imported = self.names.get(&module).and_then(|names| names.get(name));
            if name == "super" {
                module = module.parent()?;
            } else if self.is_known(&module.child(name)) {
                module = module.child(name);
            } else if let Some(imported) = imported.filter(|_| reexports < REEXPORTS_MAX) {
                let path = [imported, after].concat();
                return self.resolve(&module, &path, reexports + 1);
            } else {
                break;
            }
            rest = after;
        }
        Some(module)
    }
}

/// Reads the imports and paths of one file.
struct Reader<'a> {
    modules: &'a mut Modules,
    at: Module,
    /// All paths of more than one part, with the modules that they stand in.
    paths: Vec<(Module, Vec<String>)>,
}

impl Reader<'_> {
    fn name(&mut self, name: &str, path: Vec<String>) {
        let names = self.modules.names.entry(self.at.clone()).or_default();
        names.insert(name.to_owned(), path);
    }

    fn import(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        let (name, path) = match tree {
            syn::UseTree::Path(path) => return self.import(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|tree| self.import(prefix, tree));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                (prefix.last().cloned(), prefix.to_vec())
            }
            syn::UseTree::Name(name) => (Some(name.ident.to_string()), with(&name.ident)),
            syn::UseTree::Rename(rename) if rename.ident == "self" => {
                (Some(rename.rename.to_string()), prefix.to_vec())
            }
            syn::UseTree::Rename(rename) => (Some(rename.rename.to_string()), with(&rename.ident)),
            syn::UseTree::Glob(_) => (None, prefix.to_vec()),
        };
        if let Some(name) = name.filter(|name| path != [name.as_str()]) {
            self.name(&name, path.clone());
        }
        self.paths.push((self.at.clone(), path));
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let module = self.at.child(&item.ident.to_string());
        if is_test(&item.attrs) {
            self.modules.of_tests.insert(module);
        } else if item.content.is_some() {
            self.modules.names.entry(module.clone()).or_default();
            let outer = std::mem::replace(&mut self.at, module);
            visit::visit_item_mod(self, item);
            self.at = outer;
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.import(&[], &item.tree);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {} // `pub(in path)` uses nothing

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let parts = path.segments.iter().map(|part| part.ident.to_string());
            self.paths.push((self.at.clone(), parts.collect()));
        }
        visit::visit_path(self, path);
    }
}
