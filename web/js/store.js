// What the page remembers, in this browser only. Storage may be forbidden or full: then the page forgets, and works.

export function load(name, otherwise) {
  try {
    const text = localStorage.getItem(`bam.${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function save(name, value) {
  try {
    if (value === undefined) localStorage.removeItem(`bam.${name}`);
    else localStorage.setItem(`bam.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

// Hands a text to the person as a file.
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
