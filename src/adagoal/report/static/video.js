/* The video of a trained policy: a strip of frames, of which one is visible. */

{
  const strip = $("video-strip"), frames = Number(strip.dataset.frames);
  const showFrame = number => {
    strip.style.transform = `translateX(${-100 * number / frames}%)`;
    $("frame").value = number;
  };
  strip.style.width = `${100 * frames}%`;
  $("frame").oninput = () => showFrame(Number($("frame").value));
  playButton("play-video", 250, () => {}, () => showFrame((Number($("frame").value) + 1) % frames));
}
