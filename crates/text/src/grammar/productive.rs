//! A compiled grammar without the parts that no text follows.
//!
//! llguidance keeps rules that need an expression without texts, such as names of a pattern that are
//! all taken (<https://github.com/guidance-ai/llguidance/issues/265>), and rules that contain themselves
//! without an end. An output that enters one has no way out: only white space is allowed, or the next
//! level, to the limit of its length. Here such rules are removed, and a grammar that consists of
//! nothing else is rejected. Once llguidance does so, this file can go.

use llguidance::api::ParserLimits;
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::earley::regexvec::LexemeSet;
use llguidance::earley::{CGrammar, CSymIdx, Grammar, SymIdx};
use rustc_hash::FxHashMap;

/// Longest text of an expression in an error, in characters.
const EXPRESSION_SHOWN_MAX: usize = 100;

/// Removes the rules that no text follows, if there are any.
///
/// # Errors
///
/// The reason why nothing is left, or the bound that the expressions exceed.
pub(super) fn without_dead_ends(
    rules: &Grammar,
    lexer: &LexerSpec,
    limits: &ParserLimits,
) -> Result<Option<Grammar>, String> {
    let compiled = rules.optimize().compile(lexer.clone(), limits);
    let compiled = compiled.map_err(|error| format!("{error:#}"))?;
    if compiled.parametric() {
        return Ok(None);
    }
    let empty = empty_lexemes(lexer, limits)?;
    let symbols = Symbols::of(&compiled, &empty);
    if symbols
        .all
        .iter()
        .all(|symbol| symbols.is_productive(*symbol))
    {
        return Ok(None);
    }
    if !symbols.is_productive(compiled.start()) {
        return Err(symbols.reason(lexer));
    }
    symbols.kept(rules.name(), lexer).map(Some)
}

/// Whether each lexeme's expression has no text at all.
fn empty_lexemes(lexer: &LexerSpec, limits: &ParserLimits) -> Result<Vec<bool>, String> {
    let expressions = lexer.to_regex_vec(&mut limits.clone());
    let mut expressions = expressions.map_err(|error| format!("{error:#}"))?;
    let count = lexer.lexemes.len();
    let is_empty = |at: usize| {
        let mut one = LexemeSet::new(count);
        one.add(LexemeIdx::new(at));
        expressions.initial_state(&one).is_dead()
    };
    Ok((0..count).map(is_empty).collect())
}

/// The symbols of a grammar that its start reaches.
struct Symbols<'a> {
    grammar: &'a CGrammar,
    all: Vec<CSymIdx>,
    /// Whether some text follows the symbol of this number.
    productive: Vec<bool>,
}

impl<'a> Symbols<'a> {
    fn of(grammar: &'a CGrammar, empty: &[bool]) -> Self {
        let all = reached(grammar);
        let count = all
            .iter()
            .map(|symbol| symbol.as_index() + 1)
            .max()
            .unwrap_or(0);
        let mut symbols = Self {
            grammar,
            all,
            productive: vec![false; count],
        };
        symbols.find_productive(empty);
        symbols
    }

    fn is_productive(&self, symbol: CSymIdx) -> bool {
        self.productive[symbol.as_index()]
    }

    /// The parts of each rule of a symbol.
    fn rules(&self, symbol: CSymIdx) -> impl Iterator<Item = &'a [CSymIdx]> + use<'a> {
        let grammar = self.grammar;
        let rules = grammar.rules_of(symbol).iter();
        rules.map(|rule| grammar.rule_rhs(*rule).0)
    }

    /// Marks what has a text, beginning with expressions and what may be empty.
    fn find_productive(&mut self, empty: &[bool]) {
        // For each symbol, the rules in which it stands; for each rule, its symbol and the number of
        // parts that are not known to have a text.
        let mut uses: Vec<Vec<usize>> = vec![Vec::new(); self.productive.len()];
        let mut open = Vec::new();
        let mut found = Vec::new();
        for &symbol in &self.all {
            let data = self.grammar.sym_data(symbol);
            let has_text = data.lexeme.map(|lexeme| !empty[lexeme.as_usize()]);
            if data.is_nullable || has_text == Some(true) {
                found.push(symbol);
            }
            for parts in self.rules(symbol) {
                parts
                    .iter()
                    .for_each(|part| uses[part.as_index()].push(open.len()));
                open.push((symbol, parts.len()));
            }
        }
        while let Some(symbol) = found.pop() {
            if std::mem::replace(&mut self.productive[symbol.as_index()], true) {
                continue;
            }
            for &rule in &uses[symbol.as_index()] {
                let (of, count) = &mut open[rule];
                *count -= 1;
                if *count == 0 {
                    found.push(*of);
                }
            }
        }
    }

    /// The grammar of the productive symbols and rules.
    fn kept(&self, name: Option<&str>, lexer: &LexerSpec) -> Result<Grammar, String> {
        let message = |error: &dyn std::fmt::Display| format!("{error:#}");
        let mut kept = Grammar::new(name.map(str::to_owned));
        let mut copies: FxHashMap<usize, SymIdx> = FxHashMap::default();
        // The first symbol is the start.
        let symbols = self
            .all
            .iter()
            .filter(|symbol| self.is_productive(**symbol));
        for symbol in symbols.clone() {
            let data = self.grammar.sym_data(*symbol);
            let copy = kept.fresh_symbol_ext(&data.name, data.props.clone());
            copies.insert(symbol.as_index(), copy);
        }
        for symbol in symbols {
            let data = self.grammar.sym_data(*symbol);
            let copy = copies[&symbol.as_index()];
            if let Some(lexeme) = data.lexeme {
                kept.make_terminal(copy, lexeme, lexer)
                    .map_err(|error| message(&error))?;
                continue;
            }
            if let Some(options) = &data.gen_grammar {
                kept.make_gen_grammar(copy, options.clone())
                    .map_err(|error| message(&error))?;
            }
            for parts in self.rules(*symbol) {
                let parts = parts
                    .iter()
                    .map(|part| copies.get(&part.as_index()).copied());
                if let Some(parts) = parts.collect() {
                    kept.add_rule(copy, parts)
                        .map_err(|error| message(&error))?;
                }
            }
            if data.is_nullable {
                kept.add_rule(copy, Vec::new())
                    .map_err(|error| message(&error))?;
            }
        }
        Ok(kept)
    }

    /// Why the start has no text: the way to an expression without one, or around a ring.
    fn reason(&self, lexer: &LexerSpec) -> String {
        let mut symbol = self.grammar.start();
        let mut way = Vec::new();
        // The length of the way to each symbol that was met.
        let mut met: FxHashMap<usize, usize> = FxHashMap::default();
        loop {
            if let Some(lexeme) = self.grammar.sym_data(symbol).lexeme {
                let expression = lexer.lexeme_def_to_string(lexeme);
                let shown: String = expression.chars().take(EXPRESSION_SHOWN_MAX).collect();
                return format!("nothing follows it{}: no text is {shown}", place(&way));
            }
            if let Some(length) = met.insert(symbol.as_index(), way.len()) {
                let to_ring = if length == 0 { &way } else { &way[..length] };
                let place = place(to_ring);
                return format!("nothing follows it{place}: it contains itself without an end");
            }
            let Some(parts) = self.rules(symbol).next() else {
                return format!("nothing follows it{}: it has no alternative", place(&way));
            };
            let dead = parts.iter().position(|part| !self.is_productive(*part));
            let dead = dead.expect("a rule of productive parts is productive");
            // The name of a member, and the colon behind it.
            let name = dead
                .checked_sub(2)
                .map(|at| self.grammar.sym_name(parts[at]));
            way.extend(name.filter(|name| name.starts_with('"')).map(str::to_owned));
            symbol = parts[dead];
        }
    }
}

/// The names of members on the way to a part of a grammar.
fn place(way: &[String]) -> String {
    if way.is_empty() {
        return String::new();
    }
    format!(" in {}", way.join(", "))
}

/// The symbols that the start reaches, itself first.
fn reached(grammar: &CGrammar) -> Vec<CSymIdx> {
    let mut all = vec![grammar.start()];
    let mut seen: Vec<bool> = Vec::new();
    let mut is_new = move |symbol: CSymIdx| {
        let at = symbol.as_index();
        if seen.len() <= at {
            seen.resize(at + 1, false);
        }
        !std::mem::replace(&mut seen[at], true)
    };
    is_new(grammar.start());
    let mut at = 0;
    while let Some(&symbol) = all.get(at) {
        at += 1;
        for rule in grammar.rules_of(symbol) {
            let parts = grammar.rule_rhs(*rule).0.iter().copied();
            all.extend(parts.filter(|part| is_new(*part)));
        }
    }
    all
}
