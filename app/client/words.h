#pragma once

#include <array>
#include <string_view>

namespace bam::client {

// Plain English words: keys of the needle tasks, and the raw material of random prompts.
inline constexpr std::array<std::string_view, 96> kAdjectives = {
    "able",   "amber",   "ancient", "autumn", "bitter",  "black",  "blue",    "bold",  "brave",    "brief", "bright",
    "broad",  "brown",   "busy",    "calm",   "careful", "cheap",  "clean",   "clear", "clever",   "cold",  "common",
    "cool",   "curious", "daily",   "damp",   "dark",    "deep",   "distant", "dry",   "eager",    "early", "eastern",
    "easy",   "empty",   "equal",   "exact",  "faint",   "fair",   "famous",  "fast",  "fine",     "firm",  "flat",
    "free",   "fresh",   "gentle",  "glad",   "golden",  "grand",  "gray",    "green", "happy",    "heavy", "hidden",
    "high",   "hollow",  "honest",  "humble", "hungry",  "icy",    "kind",    "large", "late",     "light", "little",
    "lively", "lonely",  "loud",    "lucky",  "mild",    "modern", "narrow",  "noble", "northern", "odd",   "old",
    "pale",   "patient", "plain",   "polite", "proud",   "quick",  "quiet",   "rapid", "rare",     "red",   "rich",
    "rough",  "round",   "silent",  "silver", "simple",  "steady", "warm",    "young"};

inline constexpr std::array<std::string_view, 96> kNouns = {
    "anchor", "apple",   "arrow",    "autumn",  "basket",  "beach",   "bell",   "bird",   "boat",    "book",
    "bottle", "bridge",  "brook",    "butter",  "button",  "camera",  "candle", "castle", "chair",   "city",
    "clock",  "cloud",   "coat",     "coffee",  "corner",  "cotton",  "cousin", "desert", "door",    "dream",
    "engine", "evening", "farmer",   "feather", "field",   "finger",  "fire",   "flower", "forest",  "friend",
    "garden", "glass",   "harbor",   "hill",    "horse",   "house",   "island", "jacket", "journey", "kitchen",
    "ladder", "lake",    "lamp",     "leaf",    "letter",  "library", "lion",   "market", "meadow",  "mirror",
    "money",  "morning", "mountain", "music",   "needle",  "night",   "ocean",  "office", "orange",  "paper",
    "pencil", "picture", "planet",   "pocket",  "queen",   "rabbit",  "river",  "road",   "room",    "school",
    "shadow", "ship",    "shoe",     "song",    "spoon",   "station", "stone",  "storm",  "story",   "street",
    "summer", "table",   "teacher",  "tower",   "village", "window"};

}  // namespace bam::client
