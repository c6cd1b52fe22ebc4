//! Index from a path to the templates that match it: a trie of segments, walked once. At each segment two branches are
//! possible (the literal, `{*}`), and below `{**}` a second trie is walked from the path's end. The number of steps is
//! at most two to the power of the templates' depth, and never above the number of templates.

use std::collections::HashMap;

use super::hash;
use super::table::{HashSlots, NOTHING};
use super::texts::{Interner, TextId, Texts};
use crate::authorization::template::{PathTemplate, stands_for};

/// No such node.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct TemplateNode {
    parent: u32,
    /// Node below `{*}`.
    one: u32,
    /// Registered under the template that ends here.
    end: u32,
    /// Registered under the template that ends with `{**}` here.
    any: u32,
    /// The root of what follows `{**}`, last segment first.
    after_any: u32,
}

impl TemplateNode {
    fn below(parent: u32) -> Self {
        Self {
            parent,
            one: NONE,
            end: NOTHING,
            any: NOTHING,
            after_any: NONE,
        }
    }
}

/// The templates of one table.
#[derive(Debug)]
pub(super) struct TemplateTable {
    nodes: Box<[TemplateNode]>,
    /// Literal segments: hashed with the number of the node they lead away from.
    literals: HashSlots,
    has_any: bool,
}

struct Builder<'a> {
    interner: &'a mut Interner,
    nodes: Vec<TemplateNode>,
    literals: HashMap<(u32, TextId), u32>,
}

impl Builder<'_> {
    fn node(&mut self, parent: u32) -> u32 {
        self.nodes.push(TemplateNode::below(parent));
        (self.nodes.len() - 1) as u32
    }

    fn literal(&mut self, from: u32, segment: &str) -> u32 {
        let text = self.interner.id(segment.as_bytes());
        if let Some(to) = self.literals.get(&(from, text)) {
            return *to;
        }
        let to = self.node(from);
        self.literals.insert((from, text), to);
        to
    }

    fn add(&mut self, template: &PathTemplate, registered: u32) {
        let mut at = 0;
        for segment in &template.before {
            at = match segment {
                Some(literal) => self.literal(at, literal),
                None if self.nodes[at as usize].one != NONE => self.nodes[at as usize].one,
                None => {
                    let to = self.node(at);
                    self.nodes[at as usize].one = to;
                    to
                }
            };
        }
        let Some(after) = &template.after else {
            self.nodes[at as usize].end = registered;
            return;
        };
        if after.is_empty() {
            self.nodes[at as usize].any = registered;
            return;
        }
        let mut back = self.nodes[at as usize].after_any;
        if back == NONE {
            back = self.node(NONE);
            self.nodes[at as usize].after_any = back;
        }
        for segment in after.iter().rev() {
            back = self.literal(back, segment);
        }
        self.nodes[back as usize].end = registered;
    }
}

impl TemplateTable {
    /// A table of templates, each once.
    pub(super) fn new(interner: &mut Interner, entries: &[(PathTemplate, u32)]) -> Self {
        let mut builder = Builder {
            interner,
            nodes: vec![TemplateNode::below(NONE)],
            literals: HashMap::new(),
        };
        for (template, registered) in entries {
            builder.add(template, *registered);
        }
        let texts = builder.interner.texts();
        let slots = builder.literals.iter();
        let slots =
            slots.map(|((from, text), to)| (hash::whole(*from, texts.get(*text)), *text, *to));
        Self {
            literals: HashSlots::new(slots),
            has_any: entries.iter().any(|(template, _)| template.after.is_some()),
            nodes: builder.nodes.into(),
        }
    }

    /// Reports everything registered under the templates that match a path without query.
    pub(super) fn each(&self, texts: &Texts, path: &[u8], found: &mut impl FnMut(u32)) {
        if path.first() != Some(&b'/') {
            return;
        }
        let odd = |byte: &u8| !stands_for(*byte) && *byte != b'/';
        let last_odd = match self.has_any {
            true => path.iter().rposition(odd),
            false => None,
        };
        let walk = TemplateWalk {
            table: self,
            texts,
            path,
            last_odd,
        };
        walk.on(0, Some(1), found);
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.nodes) + self.literals.memory()
    }
}

struct TemplateWalk<'a> {
    table: &'a TemplateTable,
    texts: &'a Texts,
    path: &'a [u8],
    /// The last byte that no operator stands for.
    last_odd: Option<usize>,
}

impl TemplateWalk<'_> {
    fn literal(&self, from: u32, segment: &[u8]) -> Option<u32> {
        let leads = |text, to: u32| {
            self.table.nodes[to as usize].parent == from && self.texts.get(text) == segment
        };
        self.table.literals.find(hash::whole(from, segment), leads)
    }

    /// On from a node, with the path's rest beginning at `start`; none when all segments are used up.
    fn on(&self, node: u32, start: Option<usize>, found: &mut impl FnMut(u32)) {
        let here = self.table.nodes[node as usize];
        let Some(start) = start else {
            if here.end != NOTHING {
                found(here.end);
            }
            return;
        };
        let unmatched = self.last_odd.is_some_and(|odd| odd >= start);
        if !unmatched && here.any != NOTHING {
            found(here.any);
        }
        if !unmatched && here.after_any != NONE {
            self.back(here.after_any, start, found);
        }
        let rest = &self.path[start..];
        let slash = rest.iter().position(|byte| *byte == b'/');
        let segment = &rest[..slash.unwrap_or(rest.len())];
        let next = slash.map(|slash| start + slash + 1);
        if let Some(to) = self.literal(node, segment) {
            self.on(to, next, found);
        }
        if here.one != NONE && !segment.is_empty() && segment.iter().copied().all(stands_for) {
            self.on(here.one, next, found);
        }
    }

    /// Matches the segments after `{**}`, from the path's end. At least one segment before them is left to `{**}`.
    fn back(&self, root: u32, start: usize, found: &mut impl FnMut(u32)) {
        let mut node = root;
        let mut rest = &self.path[start..];
        while let Some(slash) = rest.iter().rposition(|byte| *byte == b'/') {
            let Some(to) = self.literal(node, &rest[slash + 1..]) else {
                return;
            };
            node = to;
            rest = &rest[..slash];
            let here = self.table.nodes[node as usize];
            if here.end != NOTHING {
                found(here.end);
            }
        }
    }
}
