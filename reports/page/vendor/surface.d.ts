// What the timelines that extend the page's Surface do, each in its own way.
interface Surface {
  moves(step: number): Record<string, () => void>;
  point(x: number, y: number): void;
  setCursor(cursor: unknown): void;
  scaleAtCursor(factor: number): void;
  whole(): void;
  resized(): void;
  drawNow(): void;
}
