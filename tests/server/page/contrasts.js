// Every text in sight whose contrast to what is behind it is below 4.5 to 1, as WCAG counts it; and how many there are.

const channels = (colour) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
const light = (colour) => {
  const [red, green, blue] = colour.slice(0, 3).map((one) => linear(one / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const behind = (node) => {
  for (let one = node; one; one = one.parentElement) {
    const colour = channels(getComputedStyle(one).backgroundColor);
    if (colour[3] > 200) return colour;
  }
  return [255, 255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const poor = [];
let looked = 0;
while (walker.nextNode()) {
  const text = walker.currentNode.data.trim();
  const node = walker.currentNode.parentElement;
  if (!text || node.disabled || !node.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
  const style = getComputedStyle(node);
  const both = [light(channels(node.closest("svg") ? style.fill : style.color)), light(behind(node))];
  const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  looked += 1;
  if (contrast < 4.5) poor.push(`${text}: ${contrast.toFixed(1)}`);
}
return { looked, poor };
