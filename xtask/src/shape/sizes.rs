//! How long files and functions are, how wide structs, and what share of public items is
//! documented.

use std::collections::BTreeMap;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::source::{Sources, is_test};

/// A length or width, and the item that has it.
type Sized = (usize, String);

#[derive(Default)]
struct Sizes<'a> {
    path: &'a str,
    functions: Vec<Sized>,
    structs: Vec<Sized>,
    public: usize,
    documented: usize,
    /// Lines of modules of tests.
    test_lines: usize,
}

pub(super) fn table(sources: &Sources) -> String {
    let mut sizes = Sizes::default();
    let mut files = Vec::new();
    let mut lines_of = BTreeMap::new();
    for source in sources.library() {
        sizes.path = &source.path;
        sizes.test_lines = 0;
        sizes.visit_file(&source.parsed);
        let lines = source.text.lines().count() - sizes.test_lines;
        files.push((lines, source.path.clone()));
        if let Some((package, _)) = source.within_crate() {
            *lines_of.entry(package).or_insert(0) += lines;
        }
    }
    let mut table = String::from("| measure | median | longest | where |\n|---|--:|--:|---|\n");
    let rows = [
        ("lines of a file", &mut files),
        ("lines of a function", &mut sizes.functions),
        ("fields of a struct", &mut sizes.structs),
    ];
    for (name, sizes) in rows {
        sizes.sort();
        let median = sizes.get(sizes.len() / 2).map_or(0, |size| size.0);
        let (longest, place) = sizes.last().cloned().unwrap_or_default();
        table += &format!("| {name} | {median} | {longest} | {place} |\n");
    }
    let wide = sizes.structs.iter().filter(|(fields, _)| *fields > 15);
    let wide: Vec<_> = wide
        .map(|(fields, name)| format!("{name} ({fields})"))
        .collect();
    table += &format!("\nStructs of more than 15 fields: {}\n", wide.len());
    wide.iter().for_each(|name| table += &format!("  {name}\n"));
    let share = 100.0 * sizes.documented as f64 / sizes.public.max(1) as f64;
    table += &format!(
        "Public items: {}, documented {share:.1} %\nLines without tests: ",
        sizes.public
    );
    let lines: Vec<_> = lines_of
        .iter()
        .map(|(package, lines)| format!("{package} {lines}"))
        .collect();
    table + &lines.join(", ") + "\n"
}

fn lines(span: Span) -> usize {
    span.end().line - span.start().line + 1
}

impl Sizes<'_> {
    fn function(&mut self, name: &syn::Ident, span: Span) {
        let place = format!("{} {name}", self.path);
        self.functions.push((lines(span), place));
    }

    fn item(&mut self, visibility: &syn::Visibility, attributes: &[syn::Attribute]) {
        if matches!(visibility, syn::Visibility::Public(_)) {
            self.public += 1;
            let is_doc = |attribute: &syn::Attribute| attribute.path().is_ident("doc");
            self.documented += usize::from(attributes.iter().any(is_doc));
        }
    }
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            if item.content.is_some() {
                self.test_lines += lines(item.span());
            }
            return;
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_test(&item.attrs) {
            return;
        }
        self.item(&item.vis, &item.attrs);
        self.function(&item.sig.ident, item.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.item(&item.vis, &item.attrs);
        self.function(&item.sig.ident, item.span());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.item(&item.vis, &item.attrs);
        let place = format!("{} {}", self.path, item.ident);
        self.structs.push((item.fields.len(), place));
        for field in &item.fields {
            if matches!(item.fields, syn::Fields::Named(_)) {
                self.item(&field.vis, &field.attrs);
            }
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.item(&item.vis, &item.attrs);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.item(&item.vis, &item.attrs);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.item(&item.vis, &item.attrs);
        visit::visit_item_const(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.item(&item.vis, &item.attrs);
        visit::visit_item_type(self, item);
    }
}
